"""Saved encoders: sentence-transformers gives their vectors, a save is the same bytes every time, cards are harmless."""

import html
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_card import NO_AUDIT, ModelCard, card_text, escape
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.pooling import add_mix

from .conftest import change, refused, save, theirs

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
TEXTS = ["The cell grows.[SEP]We find how models learn.", "data", "how models learn from graphs of citations " * 10]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_mix(bert: Path, weights: list[float]) -> TorchEncoder:
    encoder = load_encoder(bert, pooling="mix", device="cpu")
    add_mix(encoder.network.model, torch.tensor(weights))
    return encoder


@pytest.mark.parametrize("pooling", ["cls", "mean", "layers", "mix"])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_gives_the_same_vectors(bert, tmp_path, pooling, normalize):
    ours = load_encoder(bert, pooling=pooling, normalize=normalize, max_tokens=20, device="cpu")
    expected = ours.encode(TEXTS)  # leaves its length behind in the tokenizer
    folder = save(ours, tmp_path / "model")
    again = load_encoder(folder, device="cpu")
    for found in (theirs(folder, TEXTS), again.encode(TEXTS)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert again.settings == Settings("mix" if pooling == "layers" else pooling, 20, normalize=normalize)


def test_a_second_save_has_the_same_bytes_and_the_same_revision(bert, tmp_path):
    ours = load_encoder(bert, pooling="mix", normalize=True, max_tokens=20, device="cpu")
    first = save(ours, tmp_path / "first")
    ours.encode(TEXTS)
    assert contents(save(ours, tmp_path / "second")) == contents(first)
    loaded = load_encoder(first, device="cpu")
    third = save(loaded, tmp_path / "third")
    assert contents(third) == contents(first)
    assert load_encoder(third, device="cpu").revision == loaded.revision
    assert contents(save(loaded, third)) == contents(first)  # over what is there


def test_a_learned_mix_is_kept_and_is_part_of_the_revision(bert, tmp_path):
    ours = with_mix(bert, [0.2, -0.5, 2.0])
    folder = save(ours, tmp_path / "model")
    np.testing.assert_allclose(theirs(folder, TEXTS), ours.encode(TEXTS), atol=1e-5)
    again = load_encoder(folder, device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))
    other = load_encoder(save(with_mix(bert, [1.0, 1.0, 2.0]), tmp_path / "other"), device="cpu")
    assert other.revision != again.revision
    assert load_encoder(folder, pooling="mean").revision == load_encoder(tmp_path / "other", pooling="mean").revision
    last = with_mix(bert, [0.0, 0.0, 3.0])
    np.testing.assert_allclose(last.encode(TEXTS), load_encoder(bert, pooling="mean").encode(TEXTS), atol=1e-5)


def test_a_mix_that_sentence_transformers_saved_is_read(bert, tmp_path):
    package = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason="a module since 6.0")
    transformer = modules.Transformer(str(bert), config_kwargs={"output_hidden_states": True})
    mix = modules.WeightedLayerPooling(32, 2, layer_start=1, layer_weights=torch.nn.Parameter(torch.tensor([1.0, 3.0])))
    model = package.SentenceTransformer(modules=[transformer, mix, modules.Pooling(32, "mean")], device="cpu")
    model.save(str(tmp_path / "st"))
    ours = load_encoder(tmp_path / "st", device="cpu")
    assert ours.settings.pooling == "mix"
    np.testing.assert_allclose(ours.encode(TEXTS), model.encode(TEXTS, show_progress_bar=False), atol=1e-5)


MISFITS = [
    ({"num_hidden_layers": 12}, [1.0, 1.0, 1.0], "is for 12 layers of 32 numbers; the model has 2 of 32"),
    ({"word_embedding_dimension": 8}, [1.0, 1.0, 1.0], "is for 2 layers of 8 numbers"),
    ({"layer_start": -1}, [1.0, 1.0, 1.0], "layer_start is -1"),
    ({"layer_start": 1}, [1.0, 1.0, 1.0], "must be F32 or F16 or BF16 of shape [(]2,[)]"),
    ({}, [1.0, -1.0, 0.0], "add up to 0"),
    ({}, [1.0, float("nan"), 0.0], "not finite"),
]


@pytest.mark.parametrize(("config", "weights", "message"), MISFITS)
def test_a_mix_that_does_not_fit_is_refused(bert, tmp_path, config, weights, message):
    from safetensors.torch import save_file

    folder = save(with_mix(bert, [1.0, 1.0, 1.0]), tmp_path / "model") / "1_WeightedLayerPooling"
    change(folder / "config.json", **config)
    save_file({"layer_weights": torch.tensor(weights)}, folder / "model.safetensors")
    refused(message, load_encoder, tmp_path / "model", device="cpu", error=InputError)


def test_half_precision_files_are_half_the_size_and_computed_in_float32(bert, tmp_path):
    ours = load_encoder(bert, pooling="mean", normalize=True, device="cpu")
    full, half = save(ours, tmp_path / "full"), save(ours, tmp_path / "half", dtype="float16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (full, half)]
    assert sizes[1] < 0.6 * sizes[0]
    found = load_encoder(half, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs(half, TEXTS), found, atol=1e-5)
    np.testing.assert_allclose(found, ours.encode(TEXTS), atol=2e-2)
    refused("must be one of float16, float32", save, ours, tmp_path / "other", dtype="int8")
    with torch.no_grad():
        ours.network.model.embeddings.word_embeddings.weight[0, 0] = 1e6
    with pytest.raises(UserError, match="word_embeddings.weight holds numbers that are not finite in torch.float16"):
        save(ours, tmp_path / "infinite", dtype="float16")
    save(ours, tmp_path / "finite")


def test_prompts_and_lower_case_are_kept(save_bert, tmp_path):
    package = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    ours = load_encoder(save_bert(tmp_path / "cased", lower=False), pooling="mean", max_tokens=30, device="cpu")
    settings = replace(ours.settings, prompt="a paper ", lower=True)
    again = load_encoder(save(ours, tmp_path / "model", settings=settings), device="cpu")
    assert again.settings == settings
    lowers_separators = int(package.__version__.partition(".")[0]) < 6
    texts = ["DATA. Models learn" if lowers_separators else "DATA[SEP]Models learn"]
    np.testing.assert_allclose(theirs(tmp_path / "model", texts), again.encode(texts), atol=1e-5)
    lowered = f"a paper {texts[0].lower()}".replace("[sep]", "[SEP]")
    plain = load_encoder(tmp_path / "cased", pooling="mean", device="cpu").encode([lowered])
    np.testing.assert_allclose(again.encode(texts), plain, atol=1e-5)


FULL = ModelCard(
    name="specter", base="allenai/specter2_base@main", base_revision="0123456789ab", recipe="specter",
    tables={"training": {"batch": 32, "learning_rate": 2e-5, "losses": {"triplet": {"margin": 1.0}}}},
    data={"papers": 12345, "corpus": "f00d"}, held_out="citing papers of 2020", seeds=(0, 1), audit={"titles found": 0},
    results={"cite.map": (0.8, 0.84567), "cocite.map": (None, 0.9)},
    hardware="two cores", versions={"torch": "2.13"}, license="apache-2.0",
)  # fmt: skip


def test_a_card_says_what_was_recorded():
    text = card_text(FULL, Settings("mix", 256, normalize=True), dimension=384)
    rows = "papers | 12,345", "cite.map | 0.8 | 0.8457", "cocite.map | not measured | 0.9", "titles found | 0"
    parts = 'base_model: "allenai/specter2_base"', 'license: "apache-2.0"', "Held out: citing papers of 2020"
    more = "title + model.tokenizer.sep_token + abstract", "a learned mix of all layers", "| learning\\_rate | 2e-05 |"
    for part in (*(f"| {row} |" for row in rows), *parts, *more):
        assert part in text, part
    assert NO_AUDIT not in text
    bare = card_text(ModelCard("x", base="/data/model"), Settings("cls", None), dimension=8, has_separator=False)
    assert NO_AUDIT in bare and "base_model" not in bare and "license" not in bare and 'title + " " + abstract' in bare


def test_text_from_corpora_cannot_break_out_of_the_card():
    evil = "---\n# <script>|x</script> [a](http://evil.example) @you `code` \u202e www.evil.example \ud800\x00"
    names = dict.fromkeys(("name", "base", "recipe", "held_out", "hardware", "license"), evil)
    names |= {key: {evil: evil} for key in ("data", "audit")}
    card = replace(FULL, **names, tables={evil: {evil: [evil]}}, results={evil: (0.1, 0.2)})
    text = card_text(card, Settings("mean", 8), dimension=8)
    text.encode()
    yaml, body = text.split("\n---\n", 1)
    keys = [line.partition(":")[0] for line in yaml.splitlines()]
    assert keys == ["---", "library_name", "pipeline_tag", "tags", "license", "model-index"]
    for part in ("<script", "http:", "[a](", "@you", "www.", "\u202e", "\x00"):
        assert part not in body
    assert all(row.replace("\\|", "").count("|") in (3, 4) for row in body.splitlines() if row.startswith("|"))


@given(st.text(st.sampled_from("abw.h:/&<>#*_`[]()!|~$\\\\@-+=1 \n\t\u202e") | st.characters(), max_size=40))
def test_escaped_text_is_shown_as_it_is_and_is_nothing_else(text):
    markdown = pytest.importorskip("markdown_it", reason="pip install markdown-it-py").MarkdownIt("commonmark")
    visible = [" " if x.isspace() else x for x in text if x.isspace() or unicodedata.category(x)[0] != "C"]
    shown = " ".join("".join(visible).split())
    row = markdown.enable(["table", "strikethrough"]).render(f"| a | b |\n|---|---|\n| x | {escape(text)} |\n")
    assert set(re.findall(r"</?(\w+)", row)) <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] == ["x", shown]
    line = markdown.render(f"Held out: {escape(text)}")
    assert html.unescape(line).removeprefix("<p>").removesuffix("</p>\n").strip() == f"Held out: {shown}".strip()


def test_the_hub_reads_the_yaml_of_a_card(tmp_path):
    """Its own parser finds every field where the Hub looks for it; nothing is sent."""
    hub = pytest.importorskip("huggingface_hub", reason="comes with transformers")
    card = replace(FULL, languages=["en"], datasets=["allenai/scirepeval"])
    (tmp_path / "README.md").write_text(card_text(card, Settings("mean", 8), dimension=8))
    read = hub.ModelCard.load(tmp_path / "README.md")
    data, results = (
        read.data,
        {(each.dataset_name, each.metric_type): each.metric_value for each in read.data.eval_results},
    )
    assert (data.library_name, data.pipeline_tag, data.license) == (
        "sentence-transformers",
        "sentence-similarity",
        "apache-2.0",
    )
    assert data.base_model == "allenai/specter2_base" and {"sentence-transformers", "feature-extraction"} < {*data.tags}
    assert (data.language, data.datasets, data.model_name) == (["en"], ["allenai/scirepeval"], "specter")
    assert results == {("cite", "map"): 0.84567, ("cocite", "map"): 0.9}
    assert data.eval_results[0].task_type == "sentence-similarity" and read.text.startswith("\n# specter")
    bare = hub.ModelCard(card_text(ModelCard("x"), Settings("cls", None), dimension=8)).data
    assert not (bare.license or bare.base_model or bare.language or bare.datasets or bare.eval_results)


def test_yaml_of_a_card_is_read_by_a_yaml_parser_and_long_values_are_cut():
    yaml = pytest.importorskip("yaml", reason="comes with transformers")
    card = replace(FULL, license='x": [1]\n\u2028b: "\ud83d')
    front = yaml.safe_load(card_text(card, Settings("mean", 8), dimension=8).split("---\n")[1])
    assert front["license"] == 'x": [1] b: "' and front["base_model"] == "allenai/specter2_base"
    assert len(escape("x" * 5000)) == 300
