"""Invented papers of many sciences, on which int8 quantization is calibrated and runtimes are timed.

Holds no sentence of a real paper, and nothing that an evaluation asks about.
"""

from __future__ import annotations

from citeweave.corpus.text import paper_text

PAPERS = (
    (
        "Sparse attention for reading long records",
        "Reading a long record with full attention costs time that grows with the square of its length. We propose a "
        "sparse pattern in which each token sees its neighbors and a small set of anchors. On four benchmarks the "
        "model keeps 98.7% of the accuracy (F1 = 0.83) while it needs a fifth of the memory. An ablation shows that the "
        "anchors, not the window, carry most of the gain.",
    ),
    (
        "A kinase that slows wound closure in zebrafish larvae",
        "Wound closure depends on the migration of epithelial cells, but the signals that stop it are poorly known. "
        "Using CRISPR/Cas9 knock-outs and live imaging, we identify a kinase whose loss speeds up closure by 40% (n = "
        "62, p < 0.001). Its expression peaks six hours after injury; inhibitors of the MAPK pathway abolish the effect.",
    ),
    (
        "Weak lensing masses of 31 galaxy clusters",
        "We measure masses of clusters at redshifts 0.2 < z < 0.6 from the shear of background galaxies. The relation "
        "between mass and X-ray temperature has a slope of 1.52 ± 0.11, consistent with self-similar growth. "
        "Systematic errors of the photometric redshifts dominate the budget.",
    ),
    (
        "Minimum wages and the hours of young workers: evidence from border counties",
        "Do minimum wages reduce employment? Comparing neighboring counties on both sides of a state border, this "
        "article finds no change in the number of jobs but a decline in weekly hours of workers below 25. The estimates "
        "are robust to county-specific trends and to the choice of the comparison group.",
    ),
    (
        "On the convergence of stochastic gradient methods with heavy-tailed noise",
        "Let f be a smooth, non-convex function whose gradients are observed with noise of unbounded variance. We prove "
        "that clipping yields a rate of O(T^{-1/3}) with high probability and show by a lower bound that the exponent "
        "cannot be improved. The proof rests on a new inequality for martingales.",
    ),
    (
        "Perovskite films grown from a green solvent",
        "Thin films of lead halide perovskites are usually cast from toxic solvents. Here we report films that are grown "
        "from gamma-valerolactone at 90 °C; grains reach 800 nm and devices attain an efficiency of 19.4%. After 1,000 "
        "hours under illumination 91% of the initial power is left.",
    ),
    (
        "Cognitive behavioral therapy by telephone for insomnia: a randomized controlled trial",
        "Background: insomnia is common among older adults with osteoarthritis. Methods: 327 participants were assigned "
        "to six telephone sessions or to education only. Results: the severity index fell by 8.1 points against 4.8 "
        "(difference 3.3, 95% CI 2.1 to 4.5). Conclusion: the treatment is effective and can be offered in rural areas.",
    ),
    (
        "Soil microbes and the drought memory of grasslands",
        "Grasslands that have been dry before recover faster from the next drought. A reciprocal transplant of soils "
        "across eleven sites reveals that fungal communities, rather than plant genotypes, transmit this memory. "
        "Models of the carbon cycle should account for it.",
    ),
    (
        "Parsing noisy queries with weak supervision",
        "Semantic parsers break when users misspell, abbreviate or mix languages. We generate noisy variants of clean "
        "queries with a character-level transducer and train a BERT encoder on them. The code, the data and the trained "
        "models are available at https://example.org/noisy-queries.",
    ),
    (
        "Topological order in a kagome lattice of Rydberg atoms",
        "Arrays of neutral atoms allow the study of spin liquids in the laboratory. We map the phase diagram of 196 "
        "atoms by varying the detuning \\Delta/\\Omega and find a plateau of the string order parameter. Exact "
        "diagonalization and the density matrix renormalization group agree with the data.",
    ),
    (
        "Groundwater arsenic in a river delta",
        "About 20 million people drink from shallow wells whose arsenic exceeds 10 μg/L. We combine 4,738 field tests "
        "with a random forest of geology, slope and distance to abandoned channels (AUC 0.86). Deep wells remain safe "
        "unless pumping for irrigation draws the water down.",
    ),
    (
        "What citations say: a survey of intent, sentiment and influence",
        "A citation may praise, criticise, or merely mention. This survey reviews twenty years of schemes, corpora and "
        "classifiers, from hand-written cue phrases to pre-trained language models, and discusses why agreement between "
        "annotators is low. We close with open questions on multilingual and cross-disciplinary data.",
    ),
    ("Graph neural networks", "A short note."),
    (
        "Retinal ganglion cells encode contrast at two time scales",
        "Neurons adapt to contrast within milliseconds and again over seconds. Recording from 212 ganglion cells of the "
        "mouse with multi-electrode arrays, we separate both processes with a linear-nonlinear cascade and show that "
        "the slow one originates in bipolar terminals.",
    ),
    (
        "An efficient index for approximate nearest neighbors under updates",
        "Indexes built on proximity graphs lose recall when points are deleted. The proposed index repairs edges lazily, "
        "keeps recall@10 above 0.95 after replacing half of 100M vectors, and answers 11k queries per second on one "
        "machine. Compared with rebuilding, its cost is lower by an order of magnitude.",
    ),
    (
        "Monetary policy, expectations and the housing cycle",
        "Using a dynamic stochastic general equilibrium model with learning households, we study how announcements of "
        "the central bank move house prices. Extrapolative expectations amplify the response threefold; macroprudential "
        "limits on debt-to-income ratios dampen it.",
    ),
)


def sample_texts() -> list[str]:
    """Return the sample papers as an encoder reads them, always the same."""
    return [paper_text(title, abstract) for title, abstract in PAPERS]
