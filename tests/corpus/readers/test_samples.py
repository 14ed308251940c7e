"""Real files of every format: who recognizes them, how many records of which kind they hold, and a hash of those.

Where a hash changes on purpose, `READERS_VERSION` goes up with it.
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, CitationBlock, Context, ContextBlock, Paper
from citeweave.corpus.readers import FORMATS, reader_of

COLUMNS = "papers stubs title abstract year venue authors doi citations mentions contexts notes"
"""After a hash of papers and citations: papers that are no stubs, stubs, how many of both have which field, ..."""

SAMPLES = """
acl_anthology/2024.mrl.xml 32490b59 30 0 30 30 30 30 30 30 0 0 0 0; papers: front matter, no paper 1
acl_anthology/2024.nejlt.xml 36884439 6 0 6 6 6 6 6 6 0 0 0 0; papers: front matter, no paper 1
acl_anthology/F14.xml 2fce97b1 95 0 95 0 95 95 95 0 0 0 0 0; papers: front matter, no paper 4
arxiv/arxiv-metadata-oai-snapshot.200.jsonl 647e7e5c 200 0 200 200 200 0 200 117 0 0 0 0
arxiv/atom_empty.xml 1271cf25 0 0 0 0 0 0 0 0 0 0 0 0
arxiv/atom_error_400.xml 1271cf25 0 0 0 0 0 0 0 0 0 0 0 0; papers: error message of the arXiv API 1
arxiv/atom_old_id.xml ea86d798 1 0 1 1 1 0 1 0 0 0 0 0
arxiv/atom_search_10.xml e1f9959b 10 0 10 10 10 0 10 6 0 0 0 0
arxiv/atom_two_ids.xml 933f6944 1 0 1 1 1 0 1 0 0 0 0 0
bibtex/acl_style_clean_mteb.bib b129ce7e 7 0 7 0 7 5 7 1 0 0 0 0
bibtex/better_bibtex_export_901.bib 767e65fa 36 0 36 9 35 19 35 6 0 0 0 0
bibtex/clean_joss_paper.bib f0514bf9 11 0 11 0 11 10 11 6 0 0 0 0
bibtex/endnote_export_no_key.bib 60f67bdb 1 0 1 1 1 1 1 0 0 0 0 1
bibtex/jabref_encoding_header.bib 9cb4e17a 1 0 1 0 1 1 1 0 0 0 0 0; papers: no title 1
bibtex/mendeley_export.first15.bib 167f8158 15 0 15 8 15 9 15 3 0 0 0 1
bibtex/messy_duplicate_keys_unbalanced_873.bib 1e764478 986 0 986 14 881 579 985 10 0 0 0 0; papers: no title 1; papers: unbalanced braces 1
bibtex/percent_and_preamble_95_96.bib b865082a 1 0 1 1 1 1 1 1 0 0 0 0
bibtex/string_macros_664.bib 9ab0d25f 1 0 1 1 1 1 1 1 0 0 0 0
bibtex/string_macros_scisumm.bib 60da15af 7 0 7 0 7 6 7 1 0 0 0 0
crossref/work_10.1016_j.softx.2022.101207.json c9ceb202 1 24 25 0 25 15 24 13 25 25 0 0; citations: reference without usable id 13
crossref/work_10.1038_srep16696.json 193ea204 1 0 1 1 1 1 1 1 62 62 0 0
crossref/work_10.1136_jclinpath-2020-206745.json b0eb3113 1 5 6 1 6 6 6 3 35 35 0 0; citations: reference without usable id 1
crossref/work_10.2139_ssrn.4079400.json a8ef99f4 1 0 1 0 1 1 1 1 0 0 0 0
crossref/works_cursor_widget_20.json 41c62033 20 18 38 1 36 21 34 21 39 39 0 0; citations: reference without usable id 25
crossref/works_publisher_santa_maria_20.json a6ec80c4 20 0 20 19 20 20 20 20 76 76 0 0; citations: reference without usable id 117
crossref/works_query_ecology_2.json d7604c81 2 0 2 2 2 2 1 2 0 0 0 0
crossref/works_sample_10.json 22813726 10 79 89 3 88 45 83 42 140 140 0 1; citations: reference without usable id 49
crossref/works_types_report_20.json 1343a19d 20 0 20 1 20 0 17 20 0 0 0 0
csl_json/manubot_manual_references.json 4d686cf8 41 0 41 2 41 39 39 6 0 0 0 0
csl_json/manubot_references_2019-09-10.json de5f00bc 129 0 129 31 127 106 123 82 0 0 0 0
csl_json/zotero_better_csl_1179.json 26d6671f 26 0 26 0 26 25 26 12 0 0 0 3
grobid_tei/N18-3011.tei.xml 2948b905 1 26 27 1 26 21 27 0 26 29 17 9; citations: reference without usable id 1; contexts: no cited paper 6
grobid_tei/grobid_0.4.1_sample1.tei.header.xml c51c6326 1 0 1 1 0 0 1 0 0 0 0 0
grobid_tei/grobid_0.4.1_sample2.tei.fulltext.xml 72838fb1 1 29 30 1 29 22 28 0 29 46 32 42; citations: reference without usable id 18; contexts: no cited paper 21
jats/elife-12916-v2.xml 41d08c1c 1 23 24 1 24 23 24 21 23 40 20 2
jats/pmc_1472-6831-8-11.nxml 113e3dcf 1 30 31 1 31 29 31 18 30 55 31 1; citations: reference without usable id 1; contexts: no cited paper 1
openalex/api_work_2026.json 3a2d0e4d 1 0 1 1 1 1 1 1 54 54 0 0
openalex/api_work_W2741809807.json d86cb535 1 0 1 1 1 1 1 1 35 35 0 0
openalex/api_works_list_2.json ec61fdd0 2 0 2 2 2 2 2 2 187 187 0 0
openalex/snapshot_works_part_000.first20.jsonl ec71f816 8 0 8 0 8 1 0 8 0 0 0 0; papers: no title and no abstract 12
pubmed/MedlineImporterTestArticleItalics.xml 4360b9fc 1 0 1 1 1 1 1 1 43 43 0 0
pubmed/MedlineImporterTestMathML.xml 78432836 1 0 1 1 1 1 1 1 0 0 0 0
pubmed/MedlineImporterTestPubmedBook.xml b72f366e 1 0 1 1 1 1 1 0 0 0 0 0
pubmed/entrez_pubmed1.xml e5a403b8 2 0 2 1 2 2 2 1 0 0 0 0
pubmed/entrez_pubmed4.xml 95a679ec 1 0 1 1 1 1 1 1 48 48 0 1
pubmed/entrez_pubmed6.xml 5daf21df 1 0 1 1 1 1 1 1 53 53 0 0
pubmed/entrez_pubmed7.xml f01ddf57 1 0 1 1 1 1 1 1 49 49 0 0
pubmed/medline_pubmed_result1.txt a7984dc6 1 0 1 1 1 1 1 0 0 0 0 0
pubmed/medline_pubmed_result2.txt 169aaf95 4 0 4 4 4 4 4 3 0 0 0 0
pubmed/medline_pubmed_result3.txt a4be69a9 1 0 1 1 1 1 1 1 0 0 0 0
pubmed/pubmed-29768149.xml c33137e1 1 0 1 1 1 1 1 1 0 0 0 2
ris/embase.ris b54af709 6 0 6 6 6 6 6 6 0 0 0 0
ris/example_wos.ris fffbc700 2 0 2 2 2 2 2 2 127 127 0 0; citations: reference without usable id 18
ris/litstudy_example.ris a23cd77f 25 0 25 25 25 25 25 24 0 0 0 1
ris/ovid_psycinfo.ris 5b548280 6 0 6 6 6 6 6 6 0 0 0 6
ris/proquest.ris 5a6f4c28 6 0 6 6 6 6 6 6 0 0 0 0
ris/pubmed_zotero.ris 5af41984 6 0 6 6 6 6 6 6 0 0 0 0
ris/scopus.first30.ris 5d5e699e 30 0 30 29 30 30 30 29 0 0 0 1
ris/zotero.first30.ris bc6b05d9 30 0 30 30 30 30 30 30 0 0 0 0
s2_graph_api/citation_object.json d9f516fb 1 0 1 1 1 1 1 1 0 0 0 0; citations: the file does not name the cited paper 1; contexts: the file does not name the cited paper 4
s2_graph_api/legacy_v1_paper_ACL-W12-3903.json 37b2f303 4 24 28 1 28 18 28 14 27 27 0 0
s2_graph_api/legacy_v1_paper_MCSE.2018.2884139.json 9f8cb821 3 0 3 1 3 3 3 3 2 2 0 0
s2_graph_api/paper_batch_with_null.json 612db39b 3 0 3 3 3 2 3 3 0 0 0 0; papers: id not found at the source 1
s2_graph_api/paper_full_first20_citations.json 76a0f283 26 4 30 24 29 21 29 22 29 29 0 0; papers: no id 5; citations: reference without usable id 5
s2_graph_api/paper_references_contexts.json efec5d0c 33 2 35 33 35 32 33 11 0 0 0 0; citations: the file does not name the citing paper 35; contexts: the file does not name the citing paper 45
s2_graph_api/paper_references_contexts_with_intent_page2_first6.json 72757395 6 0 6 6 6 6 6 1 0 0 0 0; citations: the file does not name the citing paper 6; contexts: the file does not name the citing paper 12
s2_graph_api/paper_references_intents_first28.json 1c652ce3 28 0 28 28 28 28 28 6 0 0 0 0; citations: the file does not name the citing paper 28; contexts: the file does not name the citing paper 15
s2_graph_api/paper_references_title_only_page1.json 350bb1d5 0 40 40 0 0 0 0 0 0 0 0 0; papers: no id 10; citations: reference without usable id 10; citations: the file does not name the citing paper 40
s2_graph_api/paper_references_title_only_page2.json 6ab8d08b 0 4 4 0 0 0 0 0 0 0 0 0; papers: no id 13; citations: reference without usable id 13; citations: the file does not name the citing paper 4
s2_graph_api/paper_search_first20.json af0ee8d6 20 0 20 17 20 19 20 15 0 0 0 0
s2_graph_api/reference_object.json b1271821 1 0 1 1 1 1 1 0 0 0 0 0; citations: the file does not name the citing paper 1; contexts: the file does not name the citing paper 1
s2ag_bulk/abstracts-sample.jsonl f5492ae4 100 0 0 100 0 0 0 0 0 0 0 0
s2ag_bulk/citations-sample.jsonl 1271cf25 0 0 0 0 0 0 0 0 77 77 44 0; citations: no cited paper 23; contexts: citation without both papers 35
s2ag_bulk/papers-sample.jsonl ee90edf3 100 0 100 0 97 10 100 20 0 0 0 0
s2ag_bulk/s2orc-sample.jsonl 1b8cbdfc 2 46 48 1 46 44 42 1 46 75 37 0; citations: reference without usable id 1; contexts: no cited paper 3
s2orc_20200705/metadata_sample.first50.jsonl d0b87211 50 0 50 2 50 47 50 1 0 0 0 0
s2orc_20200705/metadata_sample.with_parse38.jsonl 785c8fd4 38 0 38 30 35 29 38 28 631 631 0 0
s2orc_20200705/pdf_parse_18980380.json d15558bb 1 25 25 1 25 19 25 0 25 48 29 0; citations: reference without usable id 2
s2orc_20200705/pdf_parse_18980463.json bb228d60 1 59 59 1 59 57 58 0 59 103 55 0; citations: reference without usable id 1
s2orc_20200705/pdf_parse_94551546.json d8124139 1 42 42 1 42 41 42 0 42 60 33 0; citations: reference without usable id 1; contexts: no cited paper 1
scirepeval/fos_small.first25.json 31f9e641 25 0 25 20 0 0 0 0 0 0 0 0
scirepeval/mesh_small.first40.json c3fd5cd8 40 0 40 40 0 0 0 0 0 0 0 0
scirepeval/s2and_small.first6.json 3cfccae0 66 0 66 65 0 0 0 0 0 0 0 6
scirepeval/search_small.first4.jsonl e2fe5e1d 40 0 40 36 40 26 39 0 0 0 0 8
scirepeval/specter_small.first20.json c1374bda 60 0 60 59 0 0 0 0 20 20 0 0
specter/sample-metadata.json e406ff61 55 0 55 55 0 0 0 0 0 0 0 0
specter/training/data.json d6ac469f 0 0 0 0 0 0 0 0 85 85 0 0; citations: citation of a citation (count 1), not a citation 337
specter/training/metadata.json 7a7583a2 17 0 17 17 0 0 0 0 0 0 0 0
unarxive/arXiv_src_2212_086.sel6.jsonl c97c3df5 6 0 6 6 6 0 6 0 37 57 36 21; citations: reference without usable id 13; contexts: no cited paper 6
"""
FORMAT_OF = {"s2ag_bulk": "s2ag", "s2orc_20200705": "s2orc_2020"}
"""Formats of folders that are not named for their format."""


@pytest.mark.parametrize("line", SAMPLES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_a_real_file_is_recognized_by_its_reader_alone_and_every_record_counted(shared: Path, line: str) -> None:
    name, folder = line.split()[0], line.split("/")[0]
    format, source = FORMAT_OF.get(folder, folder) if "s2orc-sample" not in name else "s2orc", shared / "samples" / name
    head, tally, count, cited, contexts = Source(source).head(), Tally(), Counter[str](), set[str](), list[Context]()
    digest = hashlib.blake2b(digest_size=4)
    assert [one for one in FORMATS if one != "plain" and reader_of(one).recognizes(head)] == [format]
    for record in reader_of(format).read(Source(source), tally):
        match record:
            case Paper():
                digest.update(json.dumps(asdict(record), sort_keys=True).encode())
                count["stubs" if record.stub else "papers"] += 1
                count["doi"] += any(id.startswith("doi:") for id in (record.id, *record.ids))
                for field in ("title", "abstract", "year", "venue", "authors"):
                    count[field] += bool(getattr(record, field))
                assert format != "crossref" or not re.search("<jats|</", record.title + record.abstract)
            case Citation():
                digest.update(json.dumps(asdict(record), sort_keys=True).encode())
                count.update(citations=1, mentions=int(record.strength))
                cited.add(record.cited)
            case Context():
                contexts.append(record)
            case CitationBlock():
                count.update(citations=len(record.citing), mentions=int(record.strength.sum()))
            case ContextBlock():
                count["contexts"] += len(record.citing)
    count.update(contexts=len(contexts), notes=sum(tally.notes.values()))
    numbers = " ".join(str(count[column]) for column in COLUMNS.split())
    reasons = [(kind, *one) for kind, counts in tally.counts.items() for one in sorted(counts.rejected.items())]
    assert (
        "".join([f"{name} {digest.hexdigest()} {numbers}", *(f"; {kind}: {reason} {n}" for kind, reason, n in reasons)])
        == line
    )
    assert {id for context in contexts for id in context.cited} <= cited


def test_other_real_files_are_not_recognized(shared: Path) -> None:
    for name in ("scirepeval/fos_labels.txt", "scirepeval/mesh_descriptors.txt", "scirepeval/tasks_config.json"):
        head = Source(shared / "samples" / name).head()
        assert not any(reader_of(format).recognizes(head) for format in FORMATS if format != "plain"), name
