"""Semantic Scholar's bulk datasets: hand-written records, the real samples, and the two ways through citations."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, CitationBlock, Context, ContextBlock, Intent, Paper, StagedRecord
from citeweave.corpus.readers import s2ag

PAPER = json.loads(r"""{"corpusid": 108228682, "externalids": {"ACL": null, "DBLP": null, "ArXiv": "1806.00001",
    "MAG": "29", "CorpusId": "108228682", "PubMed": null, "DOI": "10.1000/ABC"}, "title": "On  sorting\nthings",
    "authors": [{"authorId": "9", "name": "Ada One"}, {"authorId": null, "name": null}], "venue": "", "year": null,
    "publicationdate": "2018-03-01", "citationcount": 7, "s2fieldsofstudy": [{"category": "Chemistry",
    "source": "external"}, {"category": "Chemistry", "source": "s2-fos-model"}], "publicationtypes": ["Review"],
    "journal": {"name": "Journal of Sorting", "pages": null, "volume": ""}, "updated": "2022-01-26T17:14:15.989Z"}""")
CITATIONS = r"""{"citationid": 1, "citingcorpusid": 101, "citedcorpusid": 202, "isinfluential": false, "contexts":
 ["One\n two \u00e9\ud83d\ude00.", ""], "intents": ["background"]}
{"citingcorpusid": "101", "citedcorpusid": "203", "isinfluential": true, "contexts":
 ["Three \\ \"four\"\u00a0five"], "intents": ["methodology", "result"]}
{"citingcorpusid": 101, "citedcorpusid": null, "isinfluential": false, "contexts": ["lost"], "intents": null}
{"citingcorpusid": null, "citedcorpusid": 5, "isinfluential": false, "contexts": null, "intents": null}
{"citingcorpusid": 7, "citedcorpusid": 8, "isinfluential": false, "contexts": ["a", "b"], "intents": [["result"], null]}
""".replace("\n [", " [")


def test_papers_are_read_and_bad_ones_counted(read_all):
    bad = [{"corpusid": None, "title": "T"}, {"corpusid": 2, "title": None}, [1]]
    found = read_all("s2ag", "\n".join(map(json.dumps, [PAPER, *bad])) + "\n{broken\n")
    ids, fields, extra = ("doi:10.1000/abc", "arxiv:1806.00001", "mag:29"), ("Chemistry",), {"types": ("Review",)}
    own, title, venue = "s2:108228682", "On sorting things", "Journal of Sorting"
    assert found.papers == [Paper(own, title, "", 2018, venue, ("Ada One",), fields, ids, 7, 20220126, extra)]
    reasons = ("no id", "no title and no abstract", "not valid JSON", "not a JSON object")
    assert found.rejected("papers") == dict.fromkeys(reasons, 1)


def test_abstracts_ids_and_tldrs_are_records_of_the_same_paper(read_all):
    access, sha = {"externalids": {"DOI": "10.1000/x"}}, "894be9b4ea46a5c422e81ef3c241072d4c73fdc0"
    abstract = {"corpusid": 1, "openaccessinfo": access, "abstract": "We sort.", "updated": None}
    for record, paper in (
        (abstract, Paper("s2:1", abstract="We sort.", ids=("doi:10.1000/x",))),
        ({"corpusid": 1, "sha": sha, "primary": True}, Paper("s2:1", ids=(f"s2sha:{sha}",), stub=True)),
        ({"corpusid": 1, "model": "m", "text": "Sorting."}, Paper("s2:1", extra={"tldr": "Sorting."}, stub=True)),
    ):
        assert read_all("s2ag", [record]).papers == [paper]


Read = tuple[list[Citation], list[Context], dict[str, dict[str, int]]]


def spelled_out(records: Iterable[StagedRecord], tally: Tally) -> Read:
    """Citations and contexts one by one, also where they come in blocks, and what was rejected."""
    citations: list[Citation] = []
    contexts: list[Context] = []
    names: dict[int, str] = {}
    for record in records:
        match record:
            case CitationBlock():
                citing, cited = record.ids()
                for keys, ids in ((record.citing.tolist(), citing), (record.cited.tolist(), cited)):
                    assert hash_texts(ids).tolist() == keys
                    names |= dict(zip(keys, ids, strict=True))
                columns = zip(citing, cited, record.intents.tolist(), record.influential.tolist(), strict=True)
                citations += [Citation(a, b, Intent(i), influential=bool(f)) for a, b, i, f in columns]
            case ContextBlock():
                lengths, data = record.texts
                ends = zip(np.cumsum(lengths), lengths, strict=True)
                texts = [bytes(data[end - size : end]).decode() for end, size in ends]
                columns = zip(
                    record.citing.tolist(), texts, record.cited.tolist(), record.intents.tolist(), strict=True
                )
                contexts += [Context(names[a], t, (names[b],), intents=Intent(i)) for a, t, b, i in columns]
            case Citation():
                citations.append(record)
            case Context():
                contexts.append(record)
    return citations, contexts, {kind: count.rejected for kind, count in tally.counts.items()}


def citations_of(path: Path) -> Read:
    tally = Tally()
    return spelled_out(s2ag.read(Source(path), tally), tally)


def test_citations_have_contexts_and_intents_and_a_bad_line_costs_only_itself(tmp_path):
    path, tail = tmp_path / "citations.jsonl", '{"citingcorpusid": 1, "cited\n\nnull\n'
    path.write_text(CITATIONS + tail)
    citations, contexts, rejected = citations_of(path)
    assert citations == [
        Citation("s2:101", "s2:202", Intent.BACKGROUND),
        Citation("s2:101", "s2:203", Intent.METHOD | Intent.RESULT, influential=True),
        Citation("s2:7", "s2:8", Intent.RESULT),
    ]
    assert contexts == [
        Context("s2:101", "One two é😀.", ("s2:202",)),  # two contexts: which one the intent is about is not said
        Context("s2:101", 'Three \\ "four" five', ("s2:203",), intents=Intent.METHOD | Intent.RESULT),
        Context("s2:7", "a", ("s2:8",), intents=Intent.RESULT),
        Context("s2:7", "b", ("s2:8",)),
    ]
    reasons = ("no cited paper", "no citing paper", "not valid JSON", "not a JSON object")
    assert rejected["citations"] == dict.fromkeys(reasons, 1)
    assert rejected["contexts"] == {"citation without both papers": 1, "no text": 1}
    path.write_bytes(CITATIONS.encode() + b'{"citingcorpusid": 1, "citedcorpusid": 2, "contexts": ["\xff"]}\n')
    again, same, rejected = citations_of(path)
    assert (again, same) == (citations, contexts) and rejected["citations"]["not valid JSON"] == 1


# --- the compiled scan of citations yields what the ordinary reader yields ---

ODD_IDS = st.sampled_from([0, "007", 10**17, 10**18, 10**19, "", " 7", "x", -1, 1.0, True, [1]])
IDS = st.none() | st.integers(0, 10**6) | st.integers(0, 10**6).map(str) | ODD_IDS
INTENTS = st.sampled_from(
    [*["background", "methodology", "result", "backgrounD", "baXXXXXXXd", "uses", "métho"], "", None]
)
SENTENCES = st.one_of(
    st.text(max_size=30),
    st.text(' a\t\n\r"\\/\x00\x08\x0c\x1f\x7f\x80\x85\x9f\xa0\u2003\u2028\u3000\ufeffé\U0001f600', max_size=20),
    st.sampled_from(["As in [1], nets hold.", "  two  blanks  ", "x" * 7 + " " + "y" * 8, "\ud83d\ude00", "\ud800"]),
)
LISTED_INTENTS = st.lists(INTENTS, max_size=3) | st.lists(st.lists(INTENTS, max_size=2), max_size=2)
LINES = st.fixed_dictionaries(
    {"citingcorpusid": IDS, "citedcorpusid": IDS},
    optional={
        "isinfluential": st.sampled_from([True, False, None, 1, "true"]),
        "contexts": st.none() | st.lists(SENTENCES, max_size=4) | st.lists(st.none() | SENTENCES, max_size=2),
        "intents": st.none() | LISTED_INTENTS | INTENTS,
        "citationid": st.integers() | st.text(max_size=5),
        "": st.none() | st.floats(allow_nan=False) | st.lists(st.integers(), max_size=2),
        "contexts ": st.text('\\"u\n', max_size=4),
    },
)
SPACING = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " :  "), (",\r", ":\t")])
DAMAGE = [b"", b"\0", b"\t", b"\xff", b"\xc2\x85", b"\xc2\x9b", b"\xef\xbb\xbf", b"{", b'"', b"<", b"\\", b"0"]


@st.composite
def citation_lines(draw: st.DrawFn) -> bytes:
    record = draw(LINES)
    ordered = {key: record[key] for key in draw(st.permutations(list(record)))}
    text = json.dumps(ordered, ensure_ascii=draw(st.booleans()), separators=draw(SPACING))
    line = text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    if draw(st.integers(0, 3)) == 0:
        place, put = draw(st.integers(0, len(line))), draw(st.binary(max_size=2) | st.sampled_from(DAMAGE))
        line = line[:place] + put.replace(b"\n", b"") + line[place + draw(st.integers(0, 2)) :]
    return draw(st.sampled_from([b"", b" ", b"\t"])) + line + draw(st.sampled_from([b"", b" ", b"\r"]))


def in_order(read: Read) -> Read:
    return sorted(read[0], key=repr), sorted(read[1], key=repr), read[2]


def ordinary(lines: list[bytes]) -> Read:
    tally = Tally()
    records = (record for line in lines for record in s2ag._read_line(line.strip(), tally))
    return in_order(spelled_out(records, tally))


def scanned(block: bytes) -> tuple[Read, int]:
    """What the compiled scan makes of the lines that it takes, and how many it takes."""
    found, starts, ends = s2ag.scan_citations(block)
    tally = Tally()
    taken = [block[start:end] for start, end, read in zip(starts, ends, found.read, strict=True) if read]
    assert in_order(spelled_out(s2ag._blocks(found, tally), tally)) == ordinary(taken)
    return ordinary(taken), len(taken)


PAIR = b'{"citingcorpusid":1,"citedcorpusid":2'


@given(lines=st.lists(citation_lines(), min_size=1, max_size=6), ends=st.booleans())
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@example(lines=[PAIR + b',"contexts":["a\\q"]}'], ends=True)
@example(lines=[PAIR + b',"x":"\\q"}'], ends=True)
@example(lines=[PAIR + b',"x":"\\ud800"}'], ends=True)
@example(lines=[PAIR + b',"x":007}'], ends=True)
@example(lines=[PAIR + b',"intents":["baXXXXXXXd"]}'], ends=True)
@example(lines=[PAIR + b',"\\u0063itingcorpusid":3}'], ends=True)
@example(lines=[PAIR + b',"contexts":["\\u009b \\u0085x"]}'], ends=False)
def test_the_compiled_scan_equals_the_ordinary_reader(tmp_path, lines, ends):
    block = b"\n".join(lines) + b"\n" * ends
    try:
        block.decode()
    except UnicodeDecodeError:
        pass  # such blocks are not given to the scan
    else:
        scanned(block)
    (tmp_path / "citations.jsonl").write_bytes(PAIR + b"}\n" + block)
    expected = ordinary([PAIR + b"}", *block.split(b"\n")])
    assert in_order(citations_of(tmp_path / "citations.jsonl")) == expected


def test_the_compiled_scan_takes_usual_lines():
    usual = {"citingcorpusid": 1, "citedcorpusid": "2", "isinfluential": True, "contexts": ["Nets é hold."]}
    lines = [json.dumps({**usual, "intents": [intent]}).encode() for intent in ("background", "methodology", "result")]
    (citations, contexts, _), taken = scanned(b"\n".join(lines))
    assert taken == 3 and {context.text for context in contexts} == {"Nets é hold."}
    assert {citation.intents for citation in citations} == {Intent.BACKGROUND, Intent.METHOD, Intent.RESULT}
