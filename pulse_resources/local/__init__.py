"""Pulse's services on one machine, without containers: what `pulse up` runs.

    layout         where everything lives under $PULSE_HOME
    provision      free ports and generated passwords -> settings.json
    prerequisites  Java, Go: named when missing
    tls, java_tls  certificates of `pulse up --tls`; files of the settings in Java's forms
    downloads      jars and binaries, fetched once per user
    minio_program  the one download that is built, also before anything is installed
    postgres, kafka, minio, spark, api, dagster   how each service is started
    services       the whole list, in dependency order
    runner         one service's life: start, ready, restart, stop
    logs           bounded while services write them
    supervisor     the detached process that owns the runners
    stack          what `pulse up/down/status` do, without the terminal

Nothing else imports this package but the command line: against a cluster it is not needed.
"""
