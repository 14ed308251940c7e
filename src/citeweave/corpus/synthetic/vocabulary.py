"""Vocabulary of the synthetic literature: the words of fields, problems, methods, findings and names.

A line is one part of a concept, its wordings separated by bars; they share as few words as possible:

    "leaf blight|fungal spots on foliage|diseased crop canopies"

A concept has three parts, so that neighbors differ in one of them: `head` goes into `wrap` at the star, the
result into `frame` at its star; a frame may also take the head itself, at the hash:

    spell("leaf blight", "spotting *", "* with few labels")     -> "spotting leaf blight with few labels"
    spell("sample size", "accuracy", "* grows with #")          -> "accuracy grows with sample size"

The spelling of the phrases is British and stays: it is data. Nothing here is drawn at random and nothing is quoted: every phrase is our own. No phrase holds a period, so the sentences
of an abstract are what lies between periods. `literature.py` decides which paper says what.
"""

from __future__ import annotations


def spell(head: str, wrap: str, frame: str) -> str:
    """Return one wording of a concept from one wording of each of its parts.

    >>> spell("graph encoders", "sparse *", "* trained on simulated cases")
    'sparse graph encoders trained on simulated cases'
    """
    return frame.replace("#", head).replace("*", wrap.replace("*", head))


def _parts(lines: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.strip().split("|")) for line in lines.strip().splitlines())


def _fields(lines: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {head: _parts(body) for head, _, body in (part.partition("\n") for part in lines.strip().split("\n\n"))}


FIELDS = _fields("""
crop science
leaf blight|fungal spots on foliage|diseased crop canopies|mildew in the field
root growth|how plants spread underground|the below-ground architecture of seedlings
grain yield|harvest per hectare|how much cereal a plot returns|bushels brought in
soil moisture|water held in the topsoil|wetness of arable ground|how dry the plough layer is
weed pressure|unwanted plants between rows|volunteer species competing with the stand
pollinator visits|bees coming to flowers|insect traffic at the blossom

clinical medicine
hospital readmission|patients who come back to the ward|a second stay soon after discharge
wound healing|closure of surgical cuts|tissue repair after injury|how quickly skin mends
drug side effects|adverse reactions to medication|harm done by a prescribed compound
heart rhythm faults|arrhythmia|irregular cardiac beats|an unsteady pulse
sleep loss|insomnia|nights without rest|patients lying awake
infection spread|contagion between carers|how germs travel through a clinic|nosocomial transmission

language technology
sarcastic remarks|irony in posts|statements that mean their opposite|mocking tone
name mentions|entities in running text|references to people and places|proper nouns
long summaries|condensing reports|shortening book-length documents|digests of many pages
dialect speech|regional accents|spoken varieties far from the standard|vernacular pronunciation
rare-language translation|rendering minority tongues|moving text out of under-resourced idioms
reading difficulty|how hard a passage is|text complexity for learners|legibility of prose

materials research
crack growth|propagating fractures|how fissures lengthen under load|brittle failure paths
battery ageing|capacity fade of cells|accumulators that lose charge|electrode wear
surface corrosion|rust on alloys|oxidised metal skins|pitting by salt water
thermal conduction|heat flow through solids|how warmth crosses a lattice|phonon transport
thin-film adhesion|coatings that peel|bonding of deposited layers|delamination
glass formation|vitrification of melts|liquids that freeze without order|amorphous quenching

astronomy
exoplanet transits|planets that dim their star|periodic shadows on distant suns
galaxy mergers|colliding stellar systems|spirals falling into each other
variable stars|pulsating giants|suns whose brightness swings|Cepheid-like sources
meteor streams|showers of dust grains|debris left by comets|shooting stars
radio bursts|millisecond flashes|brief signals at long wavelengths
dark haloes|unseen mass around discs|invisible matter that bends light

ecology
species decline|vanishing wildlife|shrinking animal populations|biodiversity loss
river pollution|contaminated streams|nutrients washed downstream|dirty freshwater
forest fire risk|woodland burning|ignition in dry timber|where blazes start
bird migration|seasonal journeys of flocks|flyways|winged travellers
coral bleaching|reefs turning pale|symbiont loss in warm seas
invasive shellfish|foreign mussels|molluscs that displace natives

economics
household debt|what families owe|private borrowing|loans of ordinary consumers
wage gaps|unequal pay|earnings that differ between groups|income disparity
housing prices|cost of dwellings|what homes sell for|the property market
trade flows|exports between nations|goods that cross borders|shipping volumes
firm survival|which companies last|bankruptcy of young enterprises|business exit
tax evasion|undeclared revenue|hiding money from the treasury|fiscal dishonesty

robotics
grasp planning|picking up odd objects|where fingers should close|hand placement
indoor navigation|moving through buildings|finding the way along corridors
legged balance|staying upright on two feet|walkers that do not topple|gait stability
swarm coordination|many machines acting together|collective flight of drones
tool handover|passing implements to people|giving a worker what is needed
underwater docking|mooring a submersible|guiding vehicles into a subsea station

neuroscience
memory recall|bringing back past events|retrieval of stored episodes|remembering
attention shifts|moving the mental spotlight|switching focus|where the mind turns
motor imagery|imagined movement|rehearsing actions without acting
seizure onset|the start of epileptic fits|first moments of ictal activity
odour coding|how smells are represented|olfactory response patterns
pain perception|the feeling of hurt|nociceptive experience|how much it aches

network engineering
traffic congestion|overloaded links|packets waiting in queues|busy routers
intrusion attempts|hostile log-ins|break-ins by attackers|unauthorised access
sensor battery life|energy of tiny nodes|how long motes keep running
wireless interference|radios that disturb each other|overlapping channels|spectrum clashes
cache placement|where to keep copies|storing content near its readers
outage recovery|coming back after a blackout|restoring failed service|resilience of backbones

education research
student dropout|pupils who leave early|attrition from courses|unfinished degrees
peer feedback|classmates commenting on drafts|learners who review learners
exam anxiety|fear of tests|nervousness before assessment|stress at finals
group projects|teamwork in class|shared assignments|collaborative coursework
teacher workload|hours spent on marking|overburdened instructors|staff exhaustion
early arithmetic|counting in kindergarten|first sums|number sense of small children

climate science
rainfall extremes|cloudbursts|torrential downpours|days of exceptional precipitation
sea-ice extent|frozen polar cover|how far the pack reaches|Arctic floes
urban heat|hot city centres|warm built-up districts|temperature islands
carbon uptake|absorption of greenhouse gas|sinks that draw down emissions
monsoon timing|when the wet season begins|onset of summer rains
coastal erosion|beaches washed away|retreating shorelines|cliffs lost to waves
""")

TASKS = _parts("""
detecting *|spotting *|noticing * as it happens|an alarm for *
forecasting *|predicting * in advance|what will become of *|an outlook on *
explaining *|the causes of *|why there is * at all|what lies behind *
measuring *|putting numbers on *|a yardstick for *|quantifying *
reducing *|keeping * low|limiting *|ways to curb *
comparing * across sites|* from place to place|differences in * between locations
simulating *|artificial replicas of *|a virtual stand-in for *|computing * from first principles
monitoring *|keeping watch over *|following * through time|continuous observation of *
classifying kinds of *|a taxonomy of *|sorting * into types|telling forms of * apart
controlling *|steering *|regulating * by feedback|taking charge of *
mapping *|a chart of *|where * occurs|the spatial picture of *
ranking cases of *|deciding which * comes first|a priority order for *|triage of *
""")

CONDITIONS = _parts("""
* with few labels|* from a handful of annotated cases|* when hardly any ground truth exists
* under heavy noise|* despite corrupted recordings|* when signals are dirty
* in real time|* within milliseconds|* without any delay
* in poor regions|* where budgets are tiny|* for communities with scant resources
* over decades|* across very long spans|* for generations
* at small scale|* in miniature settings|* down to the tiniest unit
* with missing records|* despite gaps in the data|* from incomplete archives
* under privacy rules|* without revealing individuals|* when nothing personal may be shared
* in crowded settings|* at high density|* where everything overlaps
* after sudden change|* following a shock|* once the regime has shifted
* from indirect evidence|* by proxy|* through secondary traces
* for rare cases|* in the long tail|* where examples are exceptional
* across cultures|* in several countries at once|* regardless of nationality
* with cheap devices|* on consumer hardware|* using low-cost equipment
""")

FAMILIES = _parts("""
graph neural encoders|networks that pass messages along edges|relational deep models over nodes
decision forests|ensembles of randomised trees|bagged if-then splitters|many shallow partitioners that vote
Gaussian processes|kriging surfaces|priors over smooth functions|kernel-based probabilistic interpolation
agent-based simulations|virtual populations of interacting actors|bottom-up computational societies
structured interviews|guided conversations with practitioners|qualitative questioning by protocol
genetic algorithms|evolutionary search|populations of candidate solutions that mate and mutate
spectral decompositions|eigenvector analyses|projections on principal modes|factorised matrices
reinforcement learners|policies trained by reward|trial-and-error controllers|agents that maximise return
randomised trials|controlled experiments with chance assignment|treatment and placebo arms
self-attention models|transformers|architectures in which every token looks at every other
finite-element solvers|meshes of small cells|discretised partial differential equations
survey panels|repeated questionnaires|the same respondents asked year after year
wavelet filters|multi-scale oscillating bases|localised frequency transforms
causal diagrams|directed acyclic assumptions|do-calculus|structural equations of cause
nearest-neighbour matching|lookalike retrieval|pairing each case with its closest peers
convolutional networks|stacked local filters|learned image kernels with pooling
Markov chains|memoryless state transitions|stochastic steps that forget their past
rule mining|extraction of frequent if-then patterns|association discovery
support-vector machines|maximum-margin separators|wide-street linear boundaries
isotope tracers|labelled atoms|tagged chemical markers followed downstream
diffusion models|iterative denoisers|generators that undo added noise
mixed-effects regressions|hierarchical linear fits|multilevel models with random intercepts
eye-tracking sessions|gaze recordings|where subjects look, logged by camera
integer programs|combinatorial optimisation with exact branching|discrete solvers
variational autoencoders|latent bottlenecks with sampling|probabilistic compressors
change-point tests|breaks in a series|detectors of shifted regimes
remote-sensing composites|stacks of satellite scenes|multispectral pictures from orbit
text embeddings|dense vectors of passages|semantic encodings of sentences
particle filters|sequential Monte Carlo|weighted swarms of hypotheses
game-theoretic models|equilibria between rational players|strategic payoff analyses
knowledge graphs|triples of subject and object|linked ontologies
microscopy time-lapses|image series under the lens|magnified films
bootstrap intervals|resampling with replacement|repeated draws from the observed set
federated averaging|training without moving data|local updates merged at a server
symbolic regressions|searched formulae|equations found by machine
diary studies|daily self-reports|notes kept by participants
""")

MODIFIERS = _parts("""
sparse *|* with few active terms|* in which most weights are zero
robust *|* that tolerate outliers|* hardened against contamination
hierarchical *|nested *|* arranged in levels
Bayesian *|* with posterior uncertainty|* that weigh prior belief
online *|* updated with each arrival|* that never stop adapting
interpretable *|transparent *|* a human can read
distributed *|* spread over many machines|parallel *
low-rank *|compressed *|* squeezed into few dimensions
multi-task *|jointly fitted *|* that serve several goals at once
cost-aware *|frugal *|* that account for expense
symmetric *|equivariant *|* that respect invariances
calibrated *|* whose confidence can be trusted|well-tempered *
adversarial *|* pitted against an opponent|* stress-tested by attack
asynchronous *|* without a common clock|* in which nobody waits
""")

REGIMES = _parts("""
* trained on simulated cases|* fed by generated examples|* bootstrapped from synthetic input
* tuned by experts|* with hand-set parameters|* adjusted by specialists
* combined with physical laws|* constrained by conservation|* informed by first principles
* started from a generic solution|* transferred from elsewhere|* warm-started on unrelated material
* guided by active queries|* that ask for the most useful case|* with selective annotation
* checked by cross-validation|* judged on held-out folds|* verified on unseen parts
* run in stages|* as a cascade|* from coarse to fine
* averaged over seeds|* repeated many times|* pooled across restarts
* with a learned stopping rule|* that know when to quit|* ended adaptively
* over multimodal input|* that join several channels|* fusing heterogeneous sources
* without supervision|* that need no teacher|* driven by raw data alone
* aided by volunteers|* with crowd input|* drawing on lay helpers
""")

FACTORS = _parts("""
sample size|the number of cases|how much data there is|volume of observations
ambient temperature|how warm it is|degrees on the thermometer
training length|the duration of practice|how long one prepares
social status|standing in the group|rank among peers
model depth|layer count|how many stages are stacked
seasonal cycle|time of year|winter against summer
spatial resolution|pixel size|fineness of the grid
annotator skill|competence of the raters|how expert the labellers are
feedback delay|lag of the response|late information
financial incentive|payment offered|monetary reward
age of the subjects|how old participants are|years lived
sampling frequency|readings per hour|the rate of measurement
missing values|gaps in the table|unrecorded entries
network density|how closely nodes are linked|connectivity
material purity|absence of contaminants|cleanliness of the specimen
prior experience|having done it before|familiarity
batch order|the sequence of presentation|what comes first
regulatory pressure|strict rules|oversight by the state
humidity|water vapour|dampness of the air
team diversity|mixed backgrounds|heterogeneity of members
class imbalance|unequal category counts|skewed group sizes
mechanical load|applied stress|force on the part
light exposure|hours of illumination|brightness received
vocabulary overlap|shared terms|common words
initial dose|the first amount given|starting quantity
travel distance|how far one must go|kilometres covered
noise level|background disturbance|amount of interference
nutrient supply|available food|feeding rate
parental schooling|education of mother and father|learned households
hardware precision|number of bits|numerical accuracy of the device
crowd size|how many people attend|attendance
ethnic segregation|separate neighbourhoods|divided settlement
ocean salinity|salt content|brine concentration
memory budget|available storage|space for state
task difficulty|how hard the job is|challenge posed
media coverage|press attention|news reports
""")

MEASURES = _parts("""
accuracy|the share of right answers|correctness|hit rate
cost|the bill|total expenditure|money spent
stability|steadiness|resistance to drift|constancy
user trust|confidence of those involved|willingness to rely on it
processing speed|throughput|turnaround|items handled a minute
energy use|power consumption|joules spent|electric demand
fairness|equal treatment|even outcomes between groups|parity
generalisation|transfer to new settings|success outside the original domain
error variance|scatter of the mistakes|spread of residuals
survival|persistence|remaining alive or in service|longevity
agreement|consensus|concordance of judges|unanimity
recall of rare items|sensitivity in the tail|finding the uncommon ones
safety margin|distance from danger|reserve before failure
diversity|variety|breadth of forms|richness
adoption|uptake|the number who switch|acceptance
""")

SHAPES = _parts("""
* rises steadily with #|more # brings more *|# and * increase together
* falls as # grows|# erodes *|the higher #, the lower *
* saturates once # is large|returns of # for * diminish|beyond a point # no longer lifts *
* is unaffected by #|# leaves * unchanged|no link between # and * could be shown
* peaks at moderate #|# helps * until it hurts|either extreme of # lowers *
* collapses past a threshold of #|a critical value of # makes * break down|* drops abruptly with #
* responds to # only after a delay|# takes long to show in *|the influence of # on * comes late
* depends on # in newcomers alone|# matters for * just among beginners|veterans show no tie of # to *
* keeps the mark of # after its removal|traces of # remain in *|once altered by #, * does not return
* varies most where # is low|small # makes * erratic|little # means unpredictable *
* scales with the logarithm of #|each doubling of # adds the same to *|# acts on * multiplicatively
* reverses its response to # in replication|the sign of # for * flips on repetition|a repeat turns * around for #
""")

NAMES = {
    "given": "Ada Bela Caro Dario Edda Filip Gita Hanno Ines Jaro Kaia Lior Mira Nilo Oona Pavo Rhea Sami Tova Uri",
    "onset": "B Br D Dr F G H K Kr L M N P R S St T Tr V Z",
    "middle": "a al an ar e el en o ol or u un",
    "end": "beck dane fort gard kov lin mann nova rell sen tova wick",
}
"""Pieces of invented names."""
