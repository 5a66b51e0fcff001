#!/bin/sh
exec python -m kbroker.container start "$@"
