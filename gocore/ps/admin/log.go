package admin

import (
	"io"
	"os"

	"google.golang.org/grpc/grpclog"
)

// gRPC writes errors to stderr, also those that strangers make. Callers get them as errors. Who
// looks for a defect sets gRPC's own variable.
func init() {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	}
}
