"""Reading heads: scores of relations, their nulls, and the effects of taking heads away."""

from headwise.models.documents import read_documents
from headwise.study.relations import Keys, Match, Offset, Target
from headwise.study.run import Study, study
from headwise.study.settings import Settings

__all__ = ["Keys", "Match", "Offset", "Settings", "Study", "Target", "read_documents", "study"]
