"""What of a shell goes with a job: names, values, sizes; and what never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli import shell
from wattherd.errors import UserError
from wattherd.workload import job_environment
from wattherd.workload.job_environment import ACCOUNT, MOST_BYTES, exported, this_machine
from wattherd.workload.job_file import JobFile, validated_job

PASSED = {
    "PATH": "/venv/bin:/usr/bin",
    "VIRTUAL_ENV": "/venv",
    "CONDA_PREFIX": "/conda",
    "CONDA_DEFAULT_ENV": "base",
    "LD_LIBRARY_PATH": "/cuda/lib64",
    "PYTHONPATH": "/src",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HOME": "/data/hf",
    "KEYBOARD": "us",
    "OMP_NUM_THREADS": "4",
    "HTTPS_PROXY": "http://proxy:3128",
    "WATTHERD_SERVER": "http://127.0.0.1:8700",
    "MODULEPATH": "/modules",
    "AWS_REGION": "eu-central-1",
    "GIT_REMOTE": "ssh://git@git.example/x",
    "XLA_FLAGS": "--xla_config=a --xla_design=b",
    "SASROOT": "/sas",
    "TASK": "disk-usage-of-the-cluster",
    "MODEL": "/data/hf_models/llama",
    "SKL": "/data/sk-learn-benchmarks-and-more-of-that-kind",
    "WHEELS": "/src/pypi-mirror",
    "BYPASS_FILES": "1",
    "JOBS_SEEN_AT": "https://x.example/a?page=2 & ann@example.org",
}
SECRETS = {
    "WATTHERD_TOKEN": "w",
    "WATTHERD_TOKEN_FILE": "/t",
    "HF_TOKEN": "h",
    "GITHUB_TOKEN": "g",
    "GITHUB_PAT": "g",
    "WANDB_API_KEY": "w",
    "OPENAI_APIKEY": "o",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_SESSION_TOKEN": "a",
    "GOOGLE_APPLICATION_CREDENTIALS": "/g.json",
    "AZURE_CLIENT_SECRET": "a",
    "AZURE_STORAGE_CONNECTION_STRING": "a",
    "PGPASSWORD": "p",
    "MYSQL_PWD": "p",
    "DB_PASS": "p",
    "db_password": "p",
    "COOKIE": "c",
    "SESSION_COOKIES": "c",
    "SSH_AUTH_SOCK": "/s",
    "GPG_AGENT_INFO": "/g",
    "KRB5CCNAME": "FILE:/tmp/krb",
    "DATABASE_URL": "postgresql://ann:pw@db/x",
    "HTTP_PROXY": "http://ann:pw@proxy:3128",
    "DEPLOY": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA",
    "SENTRY_DSN": "s",
    "BASIC_AUTH": "b",
    "API_TOKEN_2": "b",
    "SLACK_WEBHOOK": "w",
    "TEAMS_WEBHOOK_URL": "w",
    "BLOB_SAS": "s",
    "AZURE_SAS_URL": "s",
    "VAULT_SECRETID": "s",
    "VAULT_SECRET_ID": "s",
    "PASSWORDFILE": "/p",
    "STORE": "https://x.blob.core.windows.net/c?sv=1&sig=abc",
    "BUCKET": "https://s3.example/b?X-Amz-Signature=abc",
    "JDBC": "jdbc:postgresql://db/x?user=ann&password=pw",
    "PG": "host=db user=ann password=pw",
    "MSSQL": "Server=db;User Id=ann;Pwd = pw",
    "QUEUE": "Endpoint=sb://x/;SharedAccessKey=abc",
    "FEED": "https://x/y?access_token=abc",
    "PIP_INDEX_URL": "https://abcdef@pypi.example/simple",
    "SLASHED": "redis://ann:p/w@db",
    "CURL_OPTIONS": "-H Authorization: Bearer abc",
    "JAVA_OPTS": "-Djavax.net.ssl.keyStorePassword=pw",
    "PGPASSFILE": "/p",
    "BORG_PASSCOMMAND": "pass borg",
    "GH": "ghp_" + "a1B2" * 9,
    "GH_FINE": "github_pat_" + "11ABC_" * 6,
    "GL": "glpat-" + "aB3_" * 5,
    "SLK": "xoxb" + "-12345-abcdef",
    "PAY": "sk_live" + "_abcdefgh123",
    "LLM": "sk-" + "ant-api03-abcdefghij",
    "LLM_OLD": "sk-" + "a1B2" * 12,
    "HUB": "hf_" + "aBcD" * 8,
    "WHO": "AKIA" + "IOSFODNN7EXAMPLE",
    "MAPS": "AIza" + "SyA1" * 9,
    "OURS": "wh_4b8487a0_" + "aB3_" * 8,
    "SESSION": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "CHAT": "https://hooks.slack.com/services/T0/B0/abc",
    "ARGS": "--flag=1 --value ghp_" + "a1B2" * 9,
}
NOT_FOR_JOBS = {
    "HOME": "/home/ann",
    "USER": "ann",
    "LOGNAME": "ann",
    "SHELL": "/bin/zsh",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run",
    "PWD": "/",
    "TMPDIR": "/tmp/ann",
    "TERM": "xterm",
    "DISPLAY": ":0",
    "CUDA_VISIBLE_DEVICES": "0,1,2",
    "HIP_VISIBLE_DEVICES": "0",
    "RANK": "3",
    "PET_NNODES": "9",
    "WATTHERD_JOB_ID": "j-1",
    "WATTHERD_RUN_DIR": "/elsewhere",
    "KUBEFLOW_TRAINER_SERVER_URL": "http://x",
    "BASH_FUNC_module%%": "() { eval; }",
    "NO_TEXT": "\udcff",
}
WHOLE = {**PASSED, **SECRETS, **NOT_FOR_JOBS}


def test_all_passes_an_activated_environment_and_leaves_secrets_and_sessions() -> None:
    assert exported("ALL", WHOLE) == PASSED


def test_the_address_of_a_service_is_left_out_where_a_password_is_in_it() -> None:
    shell = {"WATTHERD_SERVER": "https://ann:pw@gpu1.example", "WATTHERD_CA": "/ca.pem"}
    assert exported("ALL", shell) == {"WATTHERD_CA": "/ca.pem"}


def test_names_alone_are_taken_alone_secrets_too() -> None:
    assert exported("HF_TOKEN,SEED=3", WHOLE) == {"HF_TOKEN": "h", "SEED": "3"}
    assert exported(["A=1,2", "PATH"], WHOLE) == {"A": "1,2", "PATH": WHOLE["PATH"]}
    assert exported("HF_TOKEN,ALL", WHOLE) == {**PASSED, "HF_TOKEN": "h"}
    assert exported("NONE", WHOLE) == {}
    assert exported("", WHOLE) == {}


@pytest.mark.parametrize(
    ("export", "said"),
    [
        ("NOWHERE", "this shell has no variable NOWHERE"),
        ("all", "this shell has no variable all"),
        ("A B", "no name"),
        ("1=2", "no name"),
        ("HOME", "HOME is that of the job's account"),
        ("USER=root", "USER is that of the job's account"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused(export: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        exported(export, WHOLE)
    assert error.value.field == "--export"
    assert error.value.hint


def test_too_much_is_refused_with_the_greatest_names() -> None:
    shell = {"PATH": "/bin", "HUGE": "x" * MOST_BYTES}
    with pytest.raises(UserError, match="bytes") as error:
        exported("ALL", shell)
    assert "HUGE" in (error.value.hint or "")
    with pytest.raises(UserError, match="bytes"):
        validated_job({"run": "x", "environment": {"variables": shell}}, "job")


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=20), max_size=5))
def test_no_part_of_the_account_ever_comes_from_a_shell(variables: dict[str, str]) -> None:
    whole = {**variables, **dict.fromkeys(ACCOUNT, "theirs")}
    assert not ACCOUNT & exported("ALL", whole).keys()


def test_whatever_a_client_sends_the_account_is_not_in_it() -> None:
    sent = {"variables": {**dict.fromkeys(ACCOUNT, "theirs"), "A": "1"}}
    assert _paper({"environment": sent})["environment"] == {"A": "1"}


def test_variables_of_another_machine_do_not_count() -> None:
    sent = {"machine": "another", "variables": {"A": "1"}}
    assert "environment" not in _paper({"environment": sent})
    here = {"machine": this_machine(), "variables": {"A": "1"}}
    assert _paper({"environment": here})["environment"] == {"A": "1"}


def test_jobs_of_one_shell_share_what_they_have() -> None:
    sent = {"environment": {"variables": {"A": "1"}}}
    assert _paper(sent)["environment"] is _paper(sent)["environment"]


def test_a_job_without_one_has_the_paper_it_always_had() -> None:
    assert "environment" not in _paper({})


def _paper(more: dict[str, object]) -> dict[str, object]:
    return JobFile.model_validate({"run": "x", **more}).paper()


@pytest.mark.parametrize(
    ("document", "server", "names"),
    [
        ({}, "http://127.0.0.1:8700", set(PASSED)),
        ({}, "https://localhost", set(PASSED)),
        ({}, "http://[::1]:8700", set(PASSED)),
        ({}, "https://gpu1.example", set()),
        ({"export": "ALL"}, "https://gpu1.example", set(PASSED)),
        ({"export": "NONE"}, "http://127.0.0.1:8700", set()),
        ({"container": {"image": "x"}}, "http://127.0.0.1:8700", set()),
        ({"container": {"image": "x"}, "export": "ALL,PATH"}, "http://127.0.0.1", {"PATH"}),
    ],
)
def test_the_shell_goes_where_its_paths_mean_something(
    document: dict[str, object], server: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "SHELL", WHOLE)
    job = shell.with_environment({"run": "x", **document}, server)
    sent = job.get("environment", {"variables": {}})
    assert set(sent["variables"]) == names
    assert "export" not in job
    if names:
        asked = "export" in document
        assert sent["machine"] == ("" if asked else job_environment.this_machine())


def test_both_words_for_one_thing_are_refused() -> None:
    with pytest.raises(UserError, match="says the same"):
        shell.with_environment(
            {"export": "ALL", "environment": {"variables": {"A": "1"}}}, "http://127.0.0.1"
        )


@pytest.mark.parametrize("word", ["all", "None"])
def test_a_word_in_small_letters_leads_to_the_one_that_is_meant(word: str) -> None:
    with pytest.raises(UserError) as refused:
        exported(word, {"PATH": "/bin"})
    assert refused.value.hint == f"did you mean {word.upper()}?"
    assert exported(word, {word: "a variable of that name"}) == {word: "a variable of that name"}
