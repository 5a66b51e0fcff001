MUTE_REASONS: tuple[str, ...]
STAGES: tuple[str, ...]
