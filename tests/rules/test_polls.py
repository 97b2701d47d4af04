"""What counts as a poll, and what does not."""

from __future__ import annotations

import pytest

from loopd.core import polls


@pytest.mark.parametrize(
    "name",
    [
        "get_job_status",
        "mcp__ci__get_pipeline",
        "getJob",
        "checkDeployment",
        "check_ci",
        "list_notifications",
        "get_workflow_run",
        "describe_job",
        "task_output",
        "BashOutput",
        "get_task_result",
        "wait_for_task",
    ],
)
def test_a_tool_that_looks_after_something_is_a_poll(name: str) -> None:
    assert polls.named(name)


@pytest.mark.parametrize(
    "name",
    [
        "read_file",
        "run_tests",
        "create_job",
        "get_user",
        "search_docs",
        "list_files",
        "start_build",
        "crm_lookup",
        "build",
        "edit_file",
    ],
)
def test_a_tool_that_does_something_or_reads_is_none(name: str) -> None:
    assert not polls.named(name)


@pytest.mark.parametrize(
    "line",
    [
        "bjobs",
        "kubectl logs job/x --tail 3",
        "kubectl describe pod x | tail",
        "docker compose logs web",
        "gcloud builds list --limit 1",
        "curl -s http://x/api/v1/deployments/9",
        "cat /tmp/job.status",
        "sudo tail -n 20 nohup.out",
        "test -f done.flag && echo yes",
        "git fetch && git status -sb",
    ],
)
def test_a_command_that_looks_after_something_is_a_poll(line: str) -> None:
    assert polls.command(line)


@pytest.mark.parametrize(
    "line",
    [
        "cat src/app.py",
        "git status",
        "ls -la",
        "python run.py",
        "make",
        "curl -s http://x/index.html",
        "grep -rn status src",
        "npm run build",
    ],
)
def test_a_command_that_reads_or_works_is_none(line: str) -> None:
    assert not polls.command(line)


def test_a_short_answer_says_that_something_goes_on() -> None:
    assert polls.lives('{"state": "in_progress"}')
    assert polls.lives("no new messages")
    assert not polls.lives("412 rows")
    assert not polls.lives("def pending(): ...\n" * 20)
    assert not polls.lives(None)


def test_an_action_says_that_it_polls() -> None:
    assert polls.asked({"action": "poll", "id": 1})
    assert not polls.asked({"action": "start"})
    assert not polls.asked("poll")
