"""Adapters: gRPC servers and clients around the roles. The only importers of grpc and of the generated stubs."""
