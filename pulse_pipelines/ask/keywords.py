"""Keywords of the grammar: those of its sentences, and all that have a meaning independent of the data."""

from pulse_pipelines.ask.clauses import COMPARATORS, CONNECTORS, FILLERS, GROUPERS, NEUTRAL, VERSUS
from pulse_pipelines.ask.phrases import (
    ADJECTIVES,
    AGGREGATIONS,
    ARTICLES,
    DIFFERENT,
    GRAINS,
    HIGH,
    LOW,
    NUMBERS,
    keys,
)
from pulse_pipelines.ask.times import MONTHS

MAX_WORDS = 60
SHOWN_ROWS = 10
LEAD = keys(
    "please show me tell give find get display can could you i want to know what is are was were the "
    "calculate compute us report would like see"
)
HAVE = keys("has have there had with saw see got get recorded that which were was are is did do ,")
AMOUNTS = ("most", "fewest", "least")
NEWEST = keys("latest newest recent")
OLDEST = keys("earliest oldest")

KEYWORDS = frozenset().union(
    LEAD,
    HAVE,
    NEWEST,
    OLDEST,
    HIGH,
    LOW,
    DIFFERENT,
    ARTICLES,
    FILLERS,
    CONNECTORS,
    NEUTRAL,
    AGGREGATIONS,
    ADJECTIVES,
    GRAINS,
    MONTHS,
    NUMBERS,
    keys(" ".join((*GROUPERS, *VERSUS))),
    *(keys(" ".join(words)) for words in COMPARATORS.values()),
    keys("how many number count percentage percent share compare top bottom busiest common not except"),
    keys("= != : list or between from to since after before last past previous this yesterday today weekend"),
)
"""Words with a meaning independent of the data."""
