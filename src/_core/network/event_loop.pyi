MUTE_REASONS: tuple[str, ...]
STAGES: tuple[str, ...]
STATES: tuple[str, ...]
