"""Short training runs towards `weave`, from one bundle of tokens. Run by `benchmarks/weave.py`, told of in `docs/weave.md`.

preparing.py    writes a bundle: papers.py reads texts, citing.py reference lists, files.py writes
bundle.py       a bundle opened: tokens by view, places of sentences, reference lists, tasks
signals.py      pairs of papers that belong together, by what says so
plan.py         what one run does
batches.py      pairs of several signals become a batch
relatives.py    which papers of a batch are no negatives of each other
network.py      reads token ids: vectors of texts, of sentences and of tokens
teachers.py     what the start model and the graph know of every paper
losses.py       contrast, and imitation of the teachers
training.py     steps, and weights between the start's and the trained ones
cube.py         CSFCube by a vector, by sentences, by tokens, and by sums of them
judging.py      corpus suites and SciTLDR in processes of their own
exploring.py    runs one after the other, a line of JSON each
table.py        those lines as a table
absent.py       lets the library be imported where packages that read files are missing
"""
