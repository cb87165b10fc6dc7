"""Workspace and logging of Dagster's web server, which the control room wraps."""

from dagster._core.workspace.context import (
    WorkspaceProcessContext as WorkspaceProcessContext,
    WorkspaceRequestContext as WorkspaceRequestContext,
)
from dagster._core.workspace.load_target import WorkspaceFileTarget as WorkspaceFileTarget
from dagster._utils.log import configure_loggers as configure_loggers
