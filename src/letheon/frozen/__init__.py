"""Pipelines without rows: steps that only transform, and the predictors of pipelines."""

from letheon.frozen._predictor import FrozenStepsMixin, PipelinePredictor, freeze_step

__all__ = ["FrozenStepsMixin", "PipelinePredictor", "freeze_step"]
