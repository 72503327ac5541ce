package admin

import "github.com/paddlempi/paddlempi/gocore/status"

// Server is a running service.
type Server struct {
	address string
}

// Serve starts the service, which answers from b. It returns when the service can be called.
func Serve(o Options, b Backend) (*Server, error) {
	return nil, status.New(status.Unsupported, "the service of the parameter server is being written")
}

// Address returns the host:port that clients dial.
func (s *Server) Address() string { return s.address }

// Stop ends the service: calls under way end with errors.
func (s *Server) Stop() {}
