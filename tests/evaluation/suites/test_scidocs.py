"""SciDocs' folder: tasks in the peer's order, and precise reasons for those that cannot be judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.evaluation.probes import SCIDOCS_CLASSES
from citeweave.evaluation.suites.scidocs import NUMBERS, read_suite

FILES = {
    "mag/train.csv": "pid,class_label\na,0\nb,2\na,0\n",
    "mag/val.csv": "pid,class_label\nc,2\n",
    "mag/test.csv": "pid,class_label\nd,0\nb,2\n",
    "mesh/train.csv": "pid,class_label\ne,3\n",
    "mesh/test.csv": "pid,class_label\nf,x\n",
    "cite/test.qrel": "q 0 a 1\nq 0 b 0\nr 0 q 0\n",
    "cite/val.qrel": "q 0 z 1\n",
    "cocite/test.qrel": "s 0 a 1\n",
    "coview/test.qrel": "s 0 b 1\n",
    "coread/test.qrel": "s 0 c 1\n",
    "recomm/train.csv": 'pid,clicked_pid,similar_papers_avail_at_time\nq,a,"a,b"\n',
    "recomm/val.csv": 'pid,clicked_pid,similar_papers_avail_at_time\nq,b,"a,b"\n',
    "recomm/test.csv": 'pid,clicked_pid,similar_papers_avail_at_time\nq,b,"c,b,a"\n',
    "recomm/propensity_scores.json": '{"scores": [0.5, 0.3, 0.2]}',
    "paper_metadata_recomm.json": json.dumps({"q": {"title": "Q", "abstract": "Text.", "year": 2001}, "z": {}}),
    "paper_metadata_view_cite_read.json": json.dumps({"q": {"title": "Q", "abstract": None}, "a": {"title": "A"}}),
}
ALL = ["mag", "mesh", "co-view", "co-read", "cite", "co-cite", "recomm"]


def folder_of(path: Path, **changed: str | None) -> Path:
    for name, text in {
        **FILES,
        **{key.replace("__", "/").replace("_0_", "."): text for key, text in changed.items()},
    }.items():
        (path / name).parent.mkdir(exist_ok=True)
        if text is not None:
            (path / name).write_text(text)
    return path


def test_tasks_come_in_the_peers_order_with_the_peers_protocol(tmp_path):
    suite = read_suite(folder_of(tmp_path))
    tasks = {task.name: task for task in suite.tasks}
    assert list(tasks) == ALL and not suite.not_evaluated
    assert suite.averages["average"].parts == NUMBERS == suite.headline and len(NUMBERS) == 12
    assert tasks["mag"].rule is SCIDOCS_CLASSES and tasks["mag"].metrics == {"f1": "f1_macro"}
    assert tasks["mag"].missing_as == "zeros" and tasks["mag"].kind == "classes"
    rule = tasks["cite"].rule
    assert (rule.metrics, rule.distance, rule.decimals, rule.peers) == (("map", "ndcg"), "l2", 5, "drop")
    assert set(suite.data["files"]) == set(FILES) - {"mag/val.csv", "cite/val.qrel"}


def test_classes_are_learned_from_train_and_told_of_the_split(tmp_path):
    mag, mesh = read_suite(folder_of(tmp_path)).tasks[:2]
    ids = np.array(mag.texts.ids)
    assert ids[mag.train].tolist() == ["a", "b", "a"] and mag.train_labels.tolist() == [0, 2, 0]
    assert ids[mag.test].tolist() == ["d", "b"] and mag.test_labels.tolist() == [0, 2]
    assert mesh.train_labels.tolist() == ["3"] and mesh.test_labels.tolist() == ["x"]  # of one type
    assert mag.texts is mesh.texts and mag.texts.lacking == "paper_metadata_mag_mesh.json"
    validated = read_suite(tmp_path, split="val")
    assert np.array(validated.tasks[0].texts.ids)[validated.tasks[0].test].tolist() == ["c"]
    assert "mesh needs mesh/val.csv, which is not in" in validated.not_evaluated["mesh"]


def test_pools_and_texts(tmp_path):
    tasks = {task.name: task for task in read_suite(folder_of(tmp_path)).tasks}
    pools, texts = tasks["cite"].pools, tasks["cite"].texts
    assert (
        list(pools.names) == ["q", "r"] and pools.offsets.tolist() == [0, 2, 3] and pools.grades.tolist() == [1, 0, 0]
    )
    assert tasks["co-cite"].texts is texts and texts.titles[texts.rows(["q"])[0]] == "Q" and not texts.lacking
    assert texts.without_text == len(texts) - 2
    clicks = tasks["recomm"]
    assert sorted(clicks.texts.ids) == ["a", "b", "c", "q"] and clicks.clicks.test.places.tolist() == [1]
    assert clicks.texts.paper_texts()[clicks.texts.rows(["q"])[0]] == "Q[SEP]Text."


def test_absent_files_leave_out_their_task_alone(tmp_path):
    folder_of(tmp_path, cite__test_0_qrel=None, mag__train_0_csv=None, paper_metadata_recomm_0_json=None)
    suite = read_suite(tmp_path)
    assert [task.name for task in suite.tasks] == ["mesh", "co-view", "co-read", "co-cite"]
    assert suite.not_evaluated == {
        "mag": f"mag needs mag/train.csv, which is not in {tmp_path}",
        "cite": f"cite needs cite/test.qrel, which is not in {tmp_path}",
        "recomm": f"recomm needs paper_metadata_recomm.json, which is not in {tmp_path}",
    }
    assert "cite.map" not in suite.headline and "cite.map" in suite.averages["average"].parts
    with pytest.raises(UserError, match=r"scidocs cannot evaluate cite: cite needs cite/test\.qrel"):
        suite.choose(["cite"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cite/test.qrel", "q 0 a 1\nq 0 a 1\n", r"cite/test\.qrel line 2 judges .* a second time"),
        ("cite/test.qrel", "q 0 a 1\nq 0", r"cite/test\.qrel line 2 has 2 of the 4 parts"),
        ("cite/test.qrel", "", r"cite/test\.qrel is empty"),
        ("mag/train.csv", "pid,label\na,0\n", r"mag/train\.csv has no column 'class_label'"),
        ("mag/test.csv", "pid,class_label\n", r"mag/test\.csv holds no papers"),
        (
            "paper_metadata_view_cite_read.json",
            '{"q": {"title": "Q',
            r"paper_metadata_view_cite_read\.json cannot be read",
        ),
        ("paper_metadata_view_cite_read.json", '{"q": 1}', r"the entry of 'q' is not a JSON object"),
    ],
)
def test_half_downloaded_files_are_refused(tmp_path, name, text, message):
    (folder_of(tmp_path) / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_suite(tmp_path)


def test_a_folder_without_its_files_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"holds no files of scidocs: it needs some of mag/test\.csv.*cocite/test\.qrel"
    ):
        read_suite(tmp_path)
    (tmp_path / "mdcr_test.json").write_text("{}")
    with pytest.raises(InputError, match=r"its mdcr_test\.json belongs to mdcr"):
        read_suite(tmp_path)


@pytest.mark.parametrize("split", ["test", "val"])
def test_fixtures(shared, split):
    fixtures = shared / "fixtures"
    suite = read_suite(fixtures / "scidocs_cls", split=split)
    assert [task.name for task in suite.tasks] == ["mag", "mesh"]
    assert [len(set(task.train_labels.tolist())) for task in suite.tasks] == [5, 4]
    suite = read_suite(fixtures / "scidocs_ranking", split=split)
    assert [task.name for task in suite.tasks] == ["co-view", "co-read", "cite", "co-cite"]
    folder = fixtures / "scidocs_ranking/cite"
    assert len(suite.tasks[2].pools.candidates) == len((folder / f"{split}.qrel").read_text().splitlines())
    suite = read_suite(fixtures / "scidocs_recomm", split=split)
    assert not suite.tasks and "recomm/train.csv, paper_metadata_recomm.json" in suite.not_evaluated["recomm"]
    with pytest.raises(EmptyResultError, match=r"recomm needs recomm/train\.csv"):
        suite.choose([])
