"""Plain text from LaTeX: what bibliographies really contain, and any text at all."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.corpus.plain_text import latex_to_text

LATEX = [
    (r"{\v{S}}eva, {\'A}lvarez, Erd{\H o}s, Fran\c{c}ois", "Ševa, Álvarez, Erdős, François"),
    (r"\'e\`e\^e\"e\~n\=a\.z\u{g}\r{a}\k{a}\d{h}\b{k}", "éèêëñāżğåąḥḵ"),
    (r"G\"odel, G{\"o}del, G\"{o}del, Gau\ss, Gau{\ss}ian", "Gödel, Gödel, Gödel, Gauß, Gaußian"),
    (r"na\"{\i}ve, caf\'{e}, \'{\i}, \v\j", "naïve, café, í, ǰ"),
    (r"\O rsted, {\AA}ngstr\"om, \L{}ukasz, {\oe}uvre", "Ørsted, Ångström, Łukasz, œuvre"),
    (r"AT\&T, 50\%, \#1, \$5, a\_b, \{x\}", "AT&T, 50%, #1, $5, a_b, {x}"),
    ("pages 1--2 --- really, ``so'' he said", "pages 1–2 — really, “so” he said"),
    (r"{DNA} and {\em all} \textbf{bold} \emph{it}", "DNA and all bold it"),
    (r"the \alpha helix, \LaTeX{} and \TeX", "the α helix, LaTeX and TeX"),
    (r"$\alpha_{i}$ and $$x -- y$$ stay", r"$\alpha_{i}$ and $$x -- y$$ stay"),
    (r"as \citep[p.~3]{knuth84} says, \href{http://x.org/a}{here}", "as  says, here"),
    (r"Smith~et~al.\ left\\right", "Smith et al. left right"),
    (r"co\-op\-er\-ate 5\,mg", "cooperate 5 mg"),
    ("nothing to do", "nothing to do"),
]


@pytest.mark.parametrize(("latex", "text"), LATEX)
def test_latex_becomes_text(latex, text):
    assert latex_to_text(latex) == text


@given(st.text(st.sampled_from("\\'\"`^~={}$-&%_ \nabciIjvuHcssé")) | st.text())
def test_any_text_is_taken(text):
    assert isinstance(latex_to_text(text), str)


@pytest.mark.parametrize("unit", ["\\", "{", "$", "$\\$", "\\'", "\\cite{", "\\'{", "-", "\\href{", "\\c "])
def test_time_grows_with_the_length_only(unit):
    begin = time.process_time()
    latex_to_text(unit * (500_000 // len(unit)))
    assert time.process_time() - begin < 5
