"""Short names of annealing schedules that tell other angles apart, to know which results belong to which."""

import hashlib

from hybrid_attention.schedules import Schedule


def schedule_key(schedule: Schedule) -> str:
    """Return 8 hexadecimal digits that follow from the angles and inverse temperatures of a schedule."""
    numbers = [*schedule.angles().flatten().tolist(), schedule.beta_h, schedule.beta_J]
    return hashlib.sha256(" ".join(f"{number:.10g}" for number in numbers).encode()).hexdigest()[:8]
