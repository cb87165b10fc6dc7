"""Pulse's services on one machine, without containers: what `pulse up` runs.

    layout         paths under $PULSE_HOME
    provision      free ports and generated passwords -> settings.json
    prerequisites  Java, Go: reported when missing
    tls, java_tls  certificates of `pulse up --tls`; the settings' files in Java's formats
    downloads      jars and binaries, fetched once per user
    minio_program  the one download that is built, also before anything is installed
    postgres, kafka, minio, spark, api, dagster   start of each service
    services       the whole list, in dependency order
    runner         life cycle of one service: start, ready, restart, stop
    logs           log files, bounded while services write them
    supervisor     the detached process that owns the runners
    stack          logic of `pulse up/down/status`, without the terminal

Only the command line, chaos and benchmarks import this package: a cluster does not need it.
"""
