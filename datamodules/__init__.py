"""Data of the two tasks: generated bracket words and Tiny Shakespeare."""

from datamodules.brackets import BracketDataModule
from datamodules.tiny_shakespeare import TinyShakespeareDataModule

__all__ = ["BracketDataModule", "TinyShakespeareDataModule"]
