"""All tables of a lake, in the order in which they are filled."""

from tachograph.analyze.state import ANALYSES
from tachograph.schema import TABLES
from tachograph.summarize.schema import COMPUTED

ALL_TABLES = (*TABLES.values(), *COMPUTED.values(), ANALYSES)
