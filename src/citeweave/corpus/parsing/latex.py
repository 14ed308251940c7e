r"""LaTeX as bibliographies use it, turned into plain text: accents, letters, dashes, quotes, commands.

    >>> latex_to_text(r"{\v{S}}ik{\'a}\v{c}ek \& Gau\ss{}: the \emph{Ku\l ak} -- $O(n^2)$")
    'Šikáček & Gauß: the Kułak – $O(n^2)$'

Formulas between dollar signs stay as they are. Does not expand macros and does not know packages: a command
it does not know disappears, its argument stays.
"""

from __future__ import annotations

import re
import unicodedata

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

_SIGNS = {"---": "—", "--": "–", "``": "“", "''": "”", "~": " ", "{": "", "}": "", "\\\\": " "}
_SPACING = {
    ",": " ",
    ";": " ",
    ":": " ",
    " ": " ",
    "\n": " ",
    "\t": " ",
    "-": "",
    "/": "",
    "!": "",
    "@": "",
    "(": "",
    ")": "",
}

# every repetition is bounded or cannot begin inside itself, so that any text is read in linear time
_TOKEN = re.compile(
    r"""
    (?P<math>\$\$?(?:[^$\\]|\\[^\n]){1,2000}\$\$?)
  | \\(?:cite[a-zA-Z]{0,20}|label|ref|footnotemark)\*?(?:\[[^\[\]{}]{0,200}\]){0,2}\{[^{}\\]{0,500}\}
  | \\(?:href|textcolor|color)\s{0,9}\{[^{}\\]{0,1000}\}
  | \\(?P<accent>[`'^~=."]|[uvHcdkbr](?![a-zA-Z]))\s{0,9}
      (?:\{\s{0,9}(?P<braced>\\[ij]|[^\W\d_]?)\s{0,9}\}|(?P<bare>\\[ij](?![a-zA-Z])|[^\W\d_]))
  | \\(?P<command>[a-zA-Z]{1,40})\*?(?P<after>\{\}|[ \t\n]{0,9})
  | \\(?P<escaped>[^a-zA-Z\\])
  | (?P<sign>---?|``|''|[~{}]|\\\\)
    """,
    re.VERBOSE,
)


def latex_to_text(value: str) -> str:
    r"""The text without LaTeX; white space is left as it is.

    >>> latex_to_text(r"\'{\i}, \c{c}, \H{o}, {\aa}, \~n, na\"{\i}ve, 50\%, {DNA} ``code''")
    'í, ç, ő, å, ñ, naïve, 50%, DNA “code”'
    >>> latex_to_text(r"see \cite{knuth84} and {\em all} of C:\\temp")
    'see  and all of C: temp'
    """
    if not any(sign in value for sign in "\\{}~-`'"):
        return value
    return unicodedata.normalize("NFC", _TOKEN.sub(_replacement, value))


_FORMATTING = (
    "emph textit textbf textsc texttt textrm textsf em it bf sc tt rm sf text mathrm mathbf mathit url ensuremath"
)
_HARMLESS = {*_LETTERS, *_SYMBOLS, *_FORMATTING.split(), *(name for name in _COMBINING if name.isalpha())}
_COMMAND = re.compile(r"\\([a-zA-Z@]+)")


def is_harmless(value: str) -> bool:
    r"""Whether every command of a text is an accent, a letter, a symbol or plain formatting.

    >>> is_harmless(r"{\'E}cole \emph{all} \& $\alpha$"), is_harmless(r"\input{/etc/passwd}"), is_harmless(r"\csname x")
    (True, False, False)
    """
    return "^^" not in value and all(name in _HARMLESS for name in _COMMAND.findall(value))


def _replacement(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if found["math"]:
        return found["math"]
    if found["accent"]:
        letter = (found["braced"] or found["bare"] or "").lstrip("\\")
        return letter[:1] + _COMBINING[found["accent"]] if letter else ""
    if found["command"]:
        return _command(found["command"], found["after"])
    if kind == "escaped":
        return _SPACING.get(found["escaped"], found["escaped"])
    return _SIGNS.get(found["sign"], "") if kind == "sign" else ""


def _command(name: str, after: str) -> str:
    if name in _LETTERS:
        return _LETTERS[name]  # the blank in "Ku\\l ak" only ends the command
    if name in _SYMBOLS:
        return _SYMBOLS[name] + (" " if after.isspace() else "")
    return ""
