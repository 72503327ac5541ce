package admin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	tokenKey   = "paddlempi-token-bin" // of the metadata of every call; -bin: gRPC encodes it
	tokenBytes = 32
	leastToken = 16
	mostToken  = 1024
)

// NewToken returns 32 random bytes.
func NewToken() ([]byte, error) {
	b := make([]byte, tokenBytes)
	if _, err := rand.Read(b); err != nil {
		return nil, status.New(status.Unsupported, "the kernel gives no random bytes for the token of the parameter server: %v", err)
	}
	return b, nil
}

func checkToken(token []byte) error {
	if len(token) < leastToken || len(token) > mostToken {
		return status.New(status.Argument, "the token of the parameter server has %d bytes, not from %d to %d", len(token), leastToken, mostToken)
	}
	return nil
}

// gate turns away every call without the token, of whichever service and method. gRPC asks it when
// the header of a call is there, before it takes memory for the message, or reads it. right hears
// of the connections on which the token was shown.
func gate(token []byte, right func(local, remote net.Addr)) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		shown := info.Header.Get(tokenKey)
		if len(shown) != 1 || subtle.ConstantTimeCompare([]byte(shown[0]), token) != 1 {
			return nil, grpcstatus.Error(codes.Unauthenticated, "wrong token")
		}
		if from, is := peer.FromContext(ctx); is {
			right(from.LocalAddr, from.Addr)
		}
		return ctx, nil
	}
}

// credential shows the token with every call.
type credential []byte

func (c credential) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{tokenKey: string(c)}, nil
}

// RequireTransportSecurity says that calls without TLS show the token too.
func (c credential) RequireTransportSecurity() bool { return false }
