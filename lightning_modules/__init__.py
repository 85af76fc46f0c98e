"""Training with PyTorch Lightning: the modules of the two tasks, and the command line."""

from lightning_modules.bracket_matcher import BracketMatcher
from lightning_modules.character_language_model import CharLanguageModel

__all__ = ["BracketMatcher", "CharLanguageModel"]
