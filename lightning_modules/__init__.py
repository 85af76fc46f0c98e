"""Training with PyTorch Lightning: the modules of the two tasks, callbacks, and the command line."""

from lightning_modules.attention_pictures import AttentionPictures
from lightning_modules.bracket_matcher import BracketMatcher
from lightning_modules.calibration_callback import CalibrationCallback
from lightning_modules.character_language_model import CharLanguageModel

__all__ = ["AttentionPictures", "BracketMatcher", "CalibrationCallback", "CharLanguageModel"]
