"""Search by words: the inverted list of a segment, BM25 over all segments, completions for a search box.

write_words(folder, [text_of("Deep forests", "Trees in layers."), ...])    one segment, `writing.py`
Words.open(folder)                                                         memory-mapped, `table.py`
search_words(index, "deep trees", 10)                                      `scoring.py`
suggest(index, "deep fo"), shared_words(index, 3, 7)                       `suggesting.py`, `sharing.py`
"""

from citeweave.search.words.scoring import search_words
from citeweave.search.words.sharing import SharedWord, shared_words
from citeweave.search.words.suggesting import Suggestion, suggest
from citeweave.search.words.table import Words
from citeweave.search.words.writing import text_of, write_words

__all__ = ["SharedWord", "Suggestion", "Words", "search_words", "shared_words", "suggest", "text_of", "write_words"]
