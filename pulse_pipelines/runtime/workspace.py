"""Workspace and logging of Dagster's web server, which the control room wraps."""

from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.log import configure_loggers

__all__ = ["WorkspaceFileTarget", "WorkspaceProcessContext", "WorkspaceRequestContext", "configure_loggers"]
