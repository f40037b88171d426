"""`parley deploy`, `undeploy`, `deployments` and `withdraw`: models that are kept ready."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, dial
from parley.commands.refusals import Refused
from parley.display import console, show, show_fields

if TYPE_CHECKING:
    from parley.deployments import Deployment

app = typer.Typer(help="Look at deployed models.", no_args_is_help=True)
ROLLBACK = "rollback"
Name = Annotated[str, typer.Argument(help="The deployment's name.", metavar="NAME")]


def deploy(
    run: Annotated[str, typer.Argument(help="The run to deploy; or `rollback`.", metavar="RUN")],
    address: Address,
    identity: Identity,
    rolled_back: Annotated[
        str | None, typer.Argument(help="After `rollback`: the deployment's name.", metavar="[NAME]")
    ] = None,
    name: Annotated[str, typer.Option(help="The name that callers will use.")] = "",
    table: Annotated[
        str, typer.Option(help="The table whose rows will be asked for; the training table if left out.")
    ] = "",
    coordinator: Coordinator = "coordinator",
    json: Json = False,
) -> None:
    """Keep a trained model ready under a name, so that single rows are answered in milliseconds.

    A second run under the same name takes the first one's place without an outage. [bold]parley deploy rollback
    NAME[/bold] goes back to the version before.

    Example: [bold]parley deploy digits-1a2b3c4d5e --name churn[/bold]
    """
    from parley.contracts.run.v1 import deployment_pb2
    from parley.deployments import Deployment

    going_back = run == ROLLBACK and rolled_back is not None
    if not going_back and (rolled_back is not None or not name):
        raise typer.BadParameter("give a run and --name, or `rollback` and a name")
    with dial(address, identity, coordinator) as federation:
        if going_back:
            request = deployment_pb2.RollBackDeploymentRequest(name=rolled_back or "")
            found = Deployment(federation, federation.call("RollBackDeployment", request).deployment)
        else:
            found = federation.deploy(run, name, table)
    show_fields(_fields(found), as_json=json)


def undeploy(name: Name, address: Address, identity: Identity, coordinator: Coordinator = "coordinator") -> None:
    """Close a deployment at every party, and forget its versions. The runs stay.

    Example: [bold]parley undeploy churn[/bold]
    """
    from parley.contracts.run.v1 import deployment_pb2

    with dial(address, identity, coordinator) as federation:
        federation.call("Undeploy", deployment_pb2.UndeployRequest(name=name))
    console.print(f"{name} is deployed no longer.", highlight=False)


@app.command("list")
def list_(address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False) -> None:
    """List what is deployed, which version answers, and what it has answered.

    Example: [bold]parley deployments list[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.deployments()
    show([_fields(each) for each in found], as_json=json, empty="Nothing is deployed: parley deploy RUN --name NAME.")


def withdraw(
    run: Annotated[str, typer.Argument(help="The run.", metavar="[RUN]")] = "",
    config: Annotated[Path, typer.Option(help="The party's configuration.", metavar="PARTY.YAML")] = Path("party.yaml"),
    undo: Annotated[bool, typer.Option("--undo", help="Take part again.")] = False,
    list_runs: Annotated[
        bool, typer.Option("--list", help="List the runs that this party has withdrawn from.")
    ] = False,
    json: Json = False,
) -> None:
    """Take no further part in deployments of a run, at a party. Its service need not be started again.

    A deployment answers no more from the next second on; it does not go on without this party.

    Example: [bold]parley withdraw digits-1a2b3c4d5e --config party.yaml[/bold]
    """
    from parley.services.party.config import PartyConfig
    from parley.services.party.serving import Withdrawals
    from parley.services.wire.configuration import load_config

    state = load_config(config, PartyConfig).state
    withdrawals = Withdrawals(state)
    if list_runs == bool(run):
        raise typer.BadParameter("give one run, or --list")
    if run and not undo:
        if not (state / "runs" / Path(run).name / "model.safetensors").exists() or Path(run).name != run:
            raise Refused(f"no model of run {run} is saved here: `parley run list` shows runs, and their ids")
        withdrawals.withdraw(run)
    elif run:
        if run not in withdrawals.runs:
            raise Refused(f"this party has not withdrawn from run {run}: see `parley withdraw --list`")
        withdrawals.take_back(run)
    show([{"run": each} for each in withdrawals.runs], as_json=json, empty="This party has withdrawn from no run.")


def _fields(found: "Deployment") -> dict[str, Any]:
    message = found.message
    return {
        "name": found.name,
        "version": found.version,
        "state": found.state,
        "run": found.run_id,
        "table": message.table,
        "earlier": list(message.earlier_versions),
        "deployed_by": message.deployed_by,
        "deployed": message.deployed,
        "rows": message.rows,
        "sums": message.sums,
        "problem": message.problem,
    }
