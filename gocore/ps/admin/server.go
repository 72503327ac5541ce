package admin

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	// A connection that has not said that it speaks HTTP/2, or has no call, is closed after these
	// times. Clients connect again by themselves.
	greeting = 10 * time.Second
	idle     = time.Minute
	// A peer that answers no ping for so long is gone. A process that is stopped answers none
	// either.
	pingAfter   = 30 * time.Second
	pingTimeout = 60 * time.Second
	maxCalls    = 64      // of one connection, at the same time
	maxHeader   = 8 << 10 // of a call; the token is the only long part
)

// Server is a running service.
type Server struct {
	address string
	traffic *traffic
	room    *room
	grpc    *grpc.Server
	health  *health.Server
	served  chan struct{}
}

// Serve starts the service, which answers from b. tasks answers that of a master; nil: this rank is
// none, and has no such service. Serve returns when it can be called.
func Serve(o Options, b Backend, tasks Tasks) (*Server, error) {
	if err := checkToken(o.Token); err != nil {
		return nil, err
	}
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	if o.Limit < leastLimit || o.Limit > mostLimit {
		return nil, status.New(status.Argument, "the parameter server's limit=%d for requests is not from %d to %d bytes", o.Limit, leastLimit, mostLimit)
	}
	secured, err := o.TLS.server()
	if err != nil {
		return nil, err
	}
	l, address, err := listen(o)
	if err != nil {
		return nil, err
	}
	s := &Server{address: address, traffic: &l.traffic, room: l.room, health: health.NewServer(), served: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.Creds(secured),
		grpc.InTapHandle(gate(append([]byte(nil), o.Token...), l.room.shown)),
		grpc.ChainUnaryInterceptor(l.traffic.answered, caught(o.Panicked)),
		grpc.MaxRecvMsgSize(o.Limit),
		grpc.MaxSendMsgSize(MaxAnswer),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(greeting),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idle, Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2}),
		grpc.WaitForHandlers(true),
	)
	pspb.RegisterAdminServer(s.grpc, &service{backend: b})
	if tasks != nil {
		pspb.RegisterTasksServer(s.grpc, &taskService{master: tasks})
	}
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	s.health.SetServingStatus(pspb.Admin_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	go s.serve(l)
	return s, nil
}

func (s *Server) serve(l net.Listener) {
	defer close(s.served)
	_ = s.grpc.Serve(l) // it returns after Stop; an error of Accept that lasts ends the service too
}

// Address returns the host:port that clients dial.
func (s *Server) Address() string { return s.address }

// Traffic returns what the service has answered, and what went over its connections.
func (s *Server) Traffic() Traffic { return s.traffic.now() }

// lastAnswers is how long Stop waits for the answers to calls under way.
const lastAnswers = 2 * time.Second

// Stop ends the service. Calls under way have two seconds to be answered; the others end with
// errors, and their contexts are done. It returns when no call is in the Backend any more.
func (s *Server) Stop() {
	s.health.Shutdown()
	s.room.shut() // gRPC would wait for what they say
	late := time.AfterFunc(lastAnswers, s.grpc.Stop)
	s.grpc.GracefulStop() // the trainer that completes last reads its answer
	late.Stop()
	<-s.served
}

// caught turns a panic into the error of its call, after panicked has heard of it.
func caught(panicked func(any)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (reply any, err error) {
		defer func() {
			if panicked == nil {
				return
			}
			if why := recover(); why != nil {
				panicked(why)
				err = toGRPC(status.New(status.Panic, "a defect of the parameter server: %v", fmt.Sprint(why)))
			}
		}()
		return handle(ctx, request)
	}
}

// service checks what clients say, and asks the Backend.
type service struct {
	pspb.UnimplementedAdminServer
	backend Backend
}

func (s *service) Register(_ context.Context, r *pspb.RegisterRequest) (*pspb.RegisterReply, error) {
	m := Member{Rank: int(r.Rank), Role: r.Role, PID: int(r.Pid), Host: r.Host}
	err := m.check()
	if err == nil {
		err = s.backend.Register(m)
	}
	return &pspb.RegisterReply{}, toGRPC(err)
}

func (s *service) Declare(_ context.Context, r *pspb.DeclareRequest) (*pspb.DeclareReply, error) {
	m := Meta{Name: r.Name, Kind: r.Kind, Dim: r.Dim, Config: r.Config, Count: r.Count, Dims: r.Dims}
	if err := m.check(int(r.From)); err != nil {
		return nil, toGRPC(err)
	}
	id, err := s.backend.Declare(int(r.From), m)
	return &pspb.DeclareReply{Id: id}, toGRPC(err)
}

func (s *service) Barrier(ctx context.Context, r *pspb.BarrierRequest) (*pspb.BarrierReply, error) {
	err := checkRank("barrier", "from", int(r.From))
	if err == nil {
		err = checkName("barrier", "name", r.Name)
	}
	if err == nil {
		ctx, cancel := sooner(ctx)
		defer cancel()
		err = s.backend.Barrier(ctx, int(r.From), r.Name)
	}
	return &pspb.BarrierReply{}, toGRPC(err)
}

// sooner returns ctx with a deadline that comes so much earlier that the answer reaches the client
// before it gives up: the answer says who is missing.
func sooner(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, has := ctx.Deadline()
	if !has {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(500*time.Millisecond, time.Until(deadline)/10)))
}

func (s *service) Complete(_ context.Context, r *pspb.CompleteRequest) (*pspb.CompleteReply, error) {
	err := checkRank("complete", "from", int(r.From))
	if err == nil {
		err = s.backend.Complete(int(r.From))
	}
	return &pspb.CompleteReply{}, toGRPC(err)
}

func (s *service) Checkpoint(ctx context.Context, r *pspb.CheckpointRequest) (*pspb.CheckpointReply, error) {
	if err := checkCheckpoint(int(r.From), r.Phase, r.Dir, r.Step); err != nil {
		return nil, toGRPC(err)
	}
	ctx, cancel := sooner(ctx)
	defer cancel()
	report, err := s.backend.Checkpoint(ctx, int(r.From), r.Phase, r.Dir, r.Step, r.Detail)
	return &pspb.CheckpointReply{Report: report}, toGRPC(err)
}

func (s *service) SetLearningRate(_ context.Context, r *pspb.SetLearningRateRequest) (*pspb.SetLearningRateReply, error) {
	err := checkRate(r.Name, r.Rate)
	if err == nil {
		err = s.backend.SetLearningRate(r.Name, r.Rate)
	}
	return &pspb.SetLearningRateReply{}, toGRPC(err)
}

func (s *service) Statistics(context.Context, *pspb.StatisticsRequest) (*pspb.StatisticsReply, error) {
	return &pspb.StatisticsReply{Statistics: s.backend.Statistics()}, nil
}
