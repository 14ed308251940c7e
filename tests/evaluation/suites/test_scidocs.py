"""SciDocs' folder: tasks in the peer's order, and precise reasons for those that cannot be evaluated."""

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError
from citeweave.evaluation.suites.scidocs import NUMBERS, read_suite
from citeweave.evaluation.tasks import SCIDOCS_CLASSES

from ..conftest import grades_of, refused, task_of, write_files

CLICKS = "pid,clicked_pid,similar_papers_avail_at_time\n"
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
    "recomm/train.csv": f'{CLICKS}q,a,"a,b"\n',
    "recomm/val.csv": f'{CLICKS}q,b,"a,b"\n',
    "recomm/test.csv": f'{CLICKS}q,b,"c,b,a"\n',
    "recomm/propensity_scores.json": {"scores": [0.5, 0.3, 0.2]},
    "paper_metadata_recomm.json": {"q": {"title": "Q", "abstract": "Text.", "year": 2001}, "z": {}},
    "paper_metadata_view_cite_read.json": {"q": {"title": "Q", "abstract": None}, "a": {"title": "A"}},
}


def test_tasks_come_in_the_peers_order_with_the_peers_protocol(tmp_path):
    suite = read_suite(write_files(tmp_path, FILES))
    tasks = {task.name: task for task in suite.tasks}
    assert list(tasks) == ["mag", "mesh", "co-view", "co-read", "cite", "co-cite", "recomm"]
    assert not suite.not_evaluated
    assert suite.averages["average"].parts == NUMBERS == suite.headline and len(NUMBERS) == 12
    mag, mesh, cite, clicks = (tasks[name] for name in ("mag", "mesh", "cite", "recomm"))
    assert mag.rule is SCIDOCS_CLASSES and mag.metrics == {"f1": "f1_macro"}
    assert mag.missing_as == "zeros" and mag.kind == "classes"
    rule = cite.rule
    assert (rule.metrics, rule.distance, rule.decimals, rule.peers) == (("map", "ndcg"), "l2", 5, "drop")
    assert set(suite.data["files"]) == set(FILES) - {"mag/val.csv", "cite/val.qrel"}
    # classes are learned from train, and those of the split are predicted
    ids = np.array(mag.texts.ids)
    assert ids[mag.train].tolist() == ["a", "b", "a"] and mag.train_labels.tolist() == [0, 2, 0]
    assert ids[mag.test].tolist() == ["d", "b"] and mag.test_labels.tolist() == [0, 2]
    assert mesh.train_labels.tolist() == ["3"] and mesh.test_labels.tolist() == ["x"]  # of one type
    assert mag.texts is mesh.texts and mag.texts.lacking == "paper_metadata_mag_mesh.json"
    texts = cite.texts
    assert grades_of(cite) == {"q": {"a": 1, "b": 0}, "r": {"q": 0}} and cite.pools.offsets.tolist() == [0, 2, 3]
    assert tasks["co-cite"].texts is texts and texts.titles[texts.rows(["q"])[0]] == "Q" and not texts.lacking
    assert texts.without_text == len(texts) - 2
    assert sorted(clicks.texts.ids) == ["a", "b", "c", "q"] and clicks.clicks.test.places.tolist() == [1]
    assert clicks.texts.paper_texts()[clicks.texts.rows(["q"])[0]] == "Q[SEP]Text."
    validated = read_suite(tmp_path, split="val")
    mag = task_of(validated, "mag")
    assert np.array(mag.texts.ids)[mag.test].tolist() == ["c"]
    assert "mesh needs mesh/val.csv, which is not in" in validated.not_evaluated["mesh"]


def test_absent_files_leave_out_their_task_alone(tmp_path):
    absent = {"mag": "mag/train.csv", "cite": "cite/test.qrel", "recomm": "paper_metadata_recomm.json"}
    suite = read_suite(write_files(tmp_path, {**FILES, **dict.fromkeys(absent.values())}))
    assert [task.name for task in suite.tasks] == ["mesh", "co-view", "co-read", "co-cite"]
    reasons = {task: f"{task} needs {file}, which is not in {tmp_path}" for task, file in absent.items()}
    assert suite.not_evaluated == reasons
    assert "cite.map" not in suite.headline and "cite.map" in suite.averages["average"].parts
    refused(r"scidocs cannot evaluate cite: cite needs cite/test\.qrel", suite.choose, ["cite"])


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
    refused(r"recomm needs recomm/train\.csv", suite.choose, [], error=EmptyResultError)
