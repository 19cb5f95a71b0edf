"""How long something takes, in words."""


def duration(seconds: float) -> str:
    """As people say it: 45 s, 3 min 20 s, 2 h 5 min, 3 days."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    if minutes < 60 * 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{round(minutes / (60 * 24)):,} days"
