r"""Plain text and plain values from raw metadata: white space, markup, LaTeX, years, days, counts, names.

    >>> latex_to_text(r"{\v{S}}ik{\'a}\v{c}ek \& Gau\ss{}: the \emph{Ku\l ak} -- $O(n^2)$")
    'Šikáček & Gauß: the Kułak – $O(n^2)$'

Every reader uses these functions; raw values of an unexpected type become empty, 0 or None. LaTeX is converted as
bibliographies use it; formulas between dollar signs stay as they are, macros and packages are not expanded, and an unknown command is
removed while its argument stays. Does not decide which records are the same paper: see `identity.py`.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata

_SPACES = re.compile(r"\s+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,2000}>|<!--(?:(?!<!--).){0,20000}?-->|<!\[CDATA\[|\]\]>", re.DOTALL)
_BLOCK_TAG = re.compile(
    r"</?(?:jats:|mml:)?(?:p|title|sec|div|br|li|ul|ol|label|h[1-6]|list|list-item)\b[^<>]{0,2000}>", re.IGNORECASE
)
_YEAR = re.compile(r"(?<!\d)(1[0-9]{3}|20[0-9]{2}|2100)(?!\d)")
_DAY = re.compile(r"(\d{4})-(\d{1,2})(?:-(\d{1,2}))?")

_ASCII_WORDS = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
"""Translation table of `fold` for ASCII: lower-case letters and digits, all else a blank."""
_NOT_WORD = re.compile(r"[\W_]+")

FIRST_YEAR, LAST_YEAR = 1000, 2100


def clean_text(value: object) -> str:
    r"""Return a value as one line of text: runs of white space become one blank, control characters are removed.

    >>> clean_text("  Deep\n  learning\x00 ")
    'Deep learning'
    >>> clean_text(None)
    ''
    """
    if not isinstance(value, str):
        return ""
    if value.isprintable() and "  " not in value:  # nothing but blanks and visible characters
        return value.strip(" ")
    return _SPACES.sub(" ", _CONTROL.sub("", value)).strip()


def strip_markup(value: object) -> str:
    """Remove HTML, JATS and MathML tags from a text, decode entities, and put a blank between blocks.

    >>> strip_markup("<jats:title>Aim</jats:title><jats:p>H<sub>2</sub>O &amp; more</jats:p>")
    'Aim H2O & more'
    >>> strip_markup("if a < b and b > c")
    'if a < b and b > c'
    """
    if not isinstance(value, str):
        return ""
    if "<" in value:
        value = _TAG.sub("", _BLOCK_TAG.sub(" ", value))
    if "&" in value:
        value = html.unescape(value)
    return clean_text(value)


def year_of(value: object) -> int | None:
    """Return the plain year in a raw number or date of metadata, None where there is none between 1000 and 2100.

    >>> year_of(2018), year_of("2018-06-01"), year_of(2018.0), year_of("June 1999")
    (2018, 2018, 2018, 1999)
    >>> year_of(float("nan")), year_of("in press"), year_of(20180601), year_of(True)
    (None, None, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return value if FIRST_YEAR <= value <= LAST_YEAR else None
    if isinstance(value, str):
        match = _YEAR.search(value[:1000])
        return int(match.group(1)) if match else None
    return None


def day_of(value: object) -> int:
    """Return the day in an ISO-like date as a number YYYYMMDD, which sorts by time; 0 where there is none.

    >>> day_of("2022-01-05T10:00:00Z"), day_of("2022-01"), day_of(None)
    (20220105, 20220100, 0)
    """
    match = _DAY.search(value[:100]) if isinstance(value, str) else None
    if not match:
        return 0
    year, month, day = match.groups()
    return int(year) * 10000 + int(month) * 100 + int(day or 0)


def count_of(value: object) -> int | None:
    """Return the plain count in a raw metadata value, from 0 to below two billion, else None.

    >>> count_of(7), count_of("12"), count_of(-1), count_of(None), count_of(10**12)
    (7, 12, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 2_000_000_000 else None


def names_of(values: object) -> tuple[str, ...]:
    """Return the names in a raw metadata list as plain texts, without empty ones and repeats.

    >>> names_of(["Ada  Lovelace", "", None, "Ada Lovelace"])
    ('Ada Lovelace',)
    """
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, list | tuple):
        return ()
    return tuple(dict.fromkeys(text for text in map(clean_text, values) if text))


def fold(text: str) -> str:
    """Reduce a text to plain lower-case letters and digits for comparison, without accents, all else single blanks.

    >>> fold("Naïve Bayes: A (Re-)View!")
    'naive bayes a re view'
    """
    if text.isascii():
        return b" ".join(text.encode().translate(_ASCII_WORDS).split()).decode()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return _NOT_WORD.sub(" ", "".join(c for c in decomposed if not unicodedata.combining(c))).strip()


def dict_of(value: object) -> dict[str, object]:
    """Return a raw metadata value if it is a JSON object, else an empty one.

    >>> dict_of({"a": 1}), dict_of(None), dict_of([1])
    ({'a': 1}, {}, {})
    """
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """Return a raw metadata value if it is a JSON list, else an empty one.

    >>> list_of([1]), list_of("text"), list_of(None)
    ([1], [], [])
    """
    return value if isinstance(value, list) else []


def number_of(value: object) -> int | float | None:
    """Return the plain number in a raw metadata value if it is finite, else None.

    >>> number_of(2.5), number_of(float("nan")), number_of("2"), number_of(True)
    (2.5, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def filled(values: dict[str, object]) -> dict[str, object]:
    """Drop empty values from raw metadata: None, empty texts, lists and objects; False and 0 stay.

    >>> filled({"type": "", "open": False, "labels": [], "rank": 0, "day": None})
    {'open': False, 'rank': 0}
    """
    return {key: value for key, value in values.items() if value is not None and value not in ("", [], {}, ())}


def year_of_date(value: object) -> int | None:
    """Return the year of a date in Crossref or CSL: an object with `date-parts`, or with `raw` or `literal` text.

    >>> year_of_date({"date-parts": [["2004", 3]]}), year_of_date({"date-parts": [[None]]})
    (2004, None)
    >>> year_of_date({"literal": "Spring 1999"}), year_of_date("2001-02")
    (1999, 2001)
    """
    if not isinstance(value, dict):
        return year_of(value)
    first = next(iter(list_of(value.get("date-parts"))), None)
    year = year_of(next(iter(list_of(first)), None))
    return year or year_of(value.get("raw")) or year_of(value.get("literal"))


def person_name(value: object) -> str:
    """Return the full name of an author in Crossref or CSL, from an object of name parts or a plain text.

    >>> person_name({"given": "Ludwig", "non-dropping-particle": "van", "family": "Beethoven"})
    'Ludwig van Beethoven'
    >>> person_name({"literal": "ATLAS  Collaboration"}), person_name("A. Turing"), person_name(None)
    ('ATLAS Collaboration', 'A. Turing', '')
    """
    if not isinstance(value, dict):
        return clean_text(value)
    parts = ("given", "dropping-particle", "non-dropping-particle", "family", "suffix")
    full_name = " ".join(text for text in (clean_text(value.get(part)) for part in parts) if text)
    return full_name or clean_text(value.get("literal")) or clean_text(value.get("name"))


# --- LaTeX -------------------------------------------------------------------------------------------

_COMBINING = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", "=": "\u0304", "u": "\u0306", ".": "\u0307",
    '"': "\u0308", "r": "\u030a", "H": "\u030b", "v": "\u030c", "d": "\u0323", "c": "\u0327", "k": "\u0328",
    "b": "\u0331",
}  # fmt: skip

_LETTERS = {
    "ss": "ß", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "o": "ø", "O": "Ø", "aa": "å", "AA": "Å", "l": "ł",
    "L": "Ł", "i": "ı", "j": "ȷ", "dh": "ð", "DH": "Ð", "th": "þ", "TH": "Þ", "dj": "đ", "DJ": "Đ", "ng": "ŋ",
    "NG": "Ŋ",
}  # fmt: skip

_SYMBOLS = {
    "S": "§", "P": "¶", "pounds": "£", "copyright": "©", "dag": "†", "ldots": "…", "dots": "…",
    "textendash": "–", "textemdash": "—", "textquoteright": "’", "textquoteleft": "‘", "textquotesingle": "'",
    "textquotedblleft": "“", "textquotedblright": "”", "textbackslash": "\\", "textasciitilde": "~", "backslash": "\\",
    "textunderscore": "_", "textless": "<", "textgreater": ">", "textbar": "|", "textdegree": "°", "degree": "°",
    "textbraceleft": "{", "textbraceright": "}",
    "textmu": "µ", "textregistered": "®", "texttrademark": "™", "textasciicircum": "^", "textdollar": "$",
    "textperiodcentered": "·", "euro": "€", "texteuro": "€", "slash": "/", "par": " ", "newline": " ", "quad": " ",
    "LaTeX": "LaTeX", "TeX": "TeX", "BibTeX": "BibTeX", "times": "×", "pm": "±", "cdot": "·", "infty": "∞",
    "rightarrow": "→", "to": "→", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "sim": "∼", "approx": "≈",
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ",
    "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip

_PUNCTUATION = {"---": "—", "--": "–", "``": "“", "''": "”", "~": " ", "{": "", "}": "", "\\\\": " "}
_SPACING = {**dict.fromkeys(",;: \n\t", " "), **dict.fromkeys("-/!@()", "")}

# every repetition is bounded or cannot start inside itself, so that any text takes linear time
_TOKEN = re.compile(
    r"""
    (?P<math>\$\$?(?:[^$\\]|\\[^\n]){1,2000}\$\$?)
  | \\(?:cite[a-zA-Z]{0,20}|label|ref|footnotemark)\*?(?:\[[^\[\]{}]{0,200}\]){0,2}\{[^{}\\]{0,500}\}
  | \\(?:href|textcolor|color)\s{0,9}\{[^{}\\]{0,1000}\}
  | \\(?P<accent>[`'^~=."]|[uvHcdkbr](?![a-zA-Z]))\s{0,9}
      (?:\{\s{0,9}(?P<braced>\\[ij]|[^\W\d_]?)\s{0,9}\}|(?P<bare>\\[ij](?![a-zA-Z])|[^\W\d_]))
  | \\(?P<command>[a-zA-Z]{1,40})\*?(?P<after>\{\}|[ \t\n]{0,9})
  | \\(?P<escaped>[^a-zA-Z\\])
  | (?P<punctuation>---?|``|''|[~{}]|\\\\)
    """,
    re.VERBOSE,
)


def latex_to_text(value: str) -> str:
    r"""Convert LaTeX to plain text: accents, letters, dashes, quotes, commands; white space stays as it is.

    >>> latex_to_text(r"\'{\i}, \c{c}, \H{o}, {\aa}, \~n, na\"{\i}ve, 50\%, {DNA} ``code''")
    'í, ç, ő, å, ñ, naïve, 50%, DNA “code”'
    >>> latex_to_text(r"see \cite{knuth84} and {\em all} of C:\\temp")
    'see  and all of C: temp'
    """
    if not any(character in value for character in "\\{}~-`'"):
        return value
    return unicodedata.normalize("NFC", _TOKEN.sub(_replacement, value))


_FORMATTING = (
    "emph textit textbf textsc texttt textrm textsf em it bf sc tt rm sf text mathrm mathbf mathit url ensuremath"
)
_HARMLESS = {*_LETTERS, *_SYMBOLS, *_FORMATTING.split(), *(name for name in _COMBINING if name.isalpha())}
_COMMAND = re.compile(r"\\([a-zA-Z@]+)")


def is_harmless(value: str) -> bool:
    r"""Return whether every LaTeX command in a text is an accent, a letter, a symbol or plain formatting.

    >>> is_harmless(r"{\'E}cole \emph{all} \& $\alpha$"), is_harmless(r"\input{/etc/passwd}"), is_harmless(r"\csname x")
    (True, False, False)
    """
    return "^^" not in value and all(name in _HARMLESS for name in _COMMAND.findall(value))


def _replacement(match: re.Match[str]) -> str:
    """Return the plain text of one LaTeX token."""
    if match["math"]:
        return match["math"]
    if match["accent"]:
        letter = (match["braced"] or match["bare"] or "").lstrip("\\")
        return letter[:1] + _COMBINING[match["accent"]] if letter else ""
    if match["command"]:
        return _command_text(match["command"], match["after"])
    if match["escaped"]:
        return _SPACING.get(match["escaped"], match["escaped"])
    return _PUNCTUATION.get(match["punctuation"], "")


def _command_text(name: str, after: str) -> str:
    """Return the plain text of a LaTeX command, empty where it is unknown."""
    if name in _LETTERS:
        return _LETTERS[name]  # the blank in "Ku\\l ak" only ends the command
    if name in _SYMBOLS:
        return _SYMBOLS[name] + (" " if after.isspace() else "")
    return ""
