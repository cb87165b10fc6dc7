"""Kinds of attacks, a module each."""

from chaos.harm.attacks import (
    bodies,
    connections,
    control_room,
    floods,
    keys,
    lake,
    lake_files,
    moves,
    pipes,
    reads,
    schemas,
    services,
)

ATTACKS = (
    *schemas.ATTACKS,
    *bodies.ATTACKS,
    *connections.ATTACKS,
    *reads.ATTACKS,
    *floods.ATTACKS,
    *keys.ATTACKS,
    *control_room.ATTACKS,
    *services.ATTACKS,
    *lake.ATTACKS,
    *lake_files.ATTACKS,
    *pipes.ATTACKS,
    *moves.ATTACKS,
)
