"""Train with nothing but gRPC: no Parley installed, no generated code, the schema comes by reflection.

pip install grpcio grpcio-reflection
python plain_client.py localhost:7700 CLIENT_CERTIFICATE_FOLDER digits.yaml
"""

import sys
import uuid
from pathlib import Path

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "parley.run.v1.RunService"


def main(address: str, folder: Path, spec: Path) -> None:
    """Start a run, follow it, and print how it ended."""
    credentials = grpc.ssl_channel_credentials(
        (folder / "ca.pem").read_bytes(), (folder / "key.pem").read_bytes(), (folder / "certificate.pem").read_bytes()
    )
    with grpc.secure_channel(address, credentials) as channel:
        service = DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(SERVICE)
        start, watch = service.FindMethodByName("StartRun"), service.FindMethodByName("WatchRun")
        started = channel.unary_unary(
            f"/{SERVICE}/StartRun",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=GetMessageClass(start.output_type).FromString,
        )(GetMessageClass(start.input_type)(request_id=uuid.uuid4().hex, spec_yaml=spec.read_text()), timeout=60)
        events = channel.unary_stream(
            f"/{SERVICE}/WatchRun",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=GetMessageClass(watch.output_type).FromString,
        )(GetMessageClass(watch.input_type)(run_id=started.run.run_id))
        for response in events:
            last = response
    metrics = {metric.name: metric.value for metric in last.run.metrics}
    print(started.run.run_id, last.event.message, f"test accuracy {metrics['test accuracy']:.3f}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
