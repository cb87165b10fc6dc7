"""Erasure: a person's events removed from every store, with a receipt that can be checked."""

from pulse_pipelines.erasure import everywhere
from pulse_pipelines.erasure.run import ErasurePreview, erase, preview, verified
from pulse_pipelines.erasure.verify import Verified

__all__ = ["ErasurePreview", "Verified", "erase", "everywhere", "preview", "verified"]
