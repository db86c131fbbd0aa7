package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"golang.org/x/sync/errgroup"

	"forebay/proxy/config"
	"forebay/proxy/loadtest"
)

// demo is backends, proxy and load in one process.
func demo(ctx context.Context, cfg config.Demo) error {
	settings := config.Defaults()
	settings.Protocol, settings.Balance = cfg.Protocol, cfg.Balance
	log := newLogger(cfg.LogLevel, cfg.LogFormat)
	eng, err := newEngine(settings, log)
	if err != nil {
		return err
	}
	defer eng.Close()
	p, err := proxyConfig(settings, eng, log)
	if err != nil {
		return err
	}
	ok, err := loadtest.Demo(ctx, loadtest.DemoConfig{
		Proxy:             p,
		Thrift:            cfg.Protocol == "thrift",
		Network:           cfg.Listen.Network,
		Addr:              cfg.Listen.Addr,
		Duration:          cfg.Duration,
		Clients:           cfg.Clients,
		RequestsPerClient: cfg.RequestsPerClient,
		Keep:              cfg.Keep,
		Out:               os.Stdout,
		Progress:          isatty.IsTerminal(os.Stdout.Fd()),
	})
	if err == nil && !ok {
		err = errReported
	}
	return err
}

// echo is the echo server.
func echo(ctx context.Context, cfg config.Echo) error {
	servers := make([]*loadtest.Echo, len(cfg.Listen))
	listeners := make([]net.Listener, len(cfg.Listen))
	for i, addr := range cfg.Listen {
		ln, err := net.Listen(addr.Network, addr.Addr)
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		defer ln.Close()
		listeners[i] = ln
		servers[i] = loadtest.NewEcho(loadtest.EchoConfig{Delay: cfg.Delay, Late: cfg.Late, Greet: cfg.Greet,
			CloseAfter: cfg.CloseAfter, ResetAfter: cfg.ResetAfter, Silent: cfg.Silent,
			Thrift: cfg.Protocol == "thrift", WrongID: cfg.WrongID, AnswerOneway: cfg.AnswerOneway,
			Twice: cfg.Twice, Half: cfg.Half, Early: cfg.Early, After: cfg.After})
		fmt.Fprintf(os.Stderr, "echo: listening on %s\n", config.Address{Network: addr.Network, Addr: ln.Addr().String()})
	}
	err := serveEchoes(ctx, servers, listeners)
	return errors.Join(err, printEchoes(servers, listeners))
}

func printEchoes(servers []*loadtest.Echo, listeners []net.Listener) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "address\tconnections\tmost at once\tcalls\toneways\treplies\tfaults\tbytes in\tbytes out\t")
	for i, s := range servers {
		st := s.Stats()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", listeners[i].Addr(), st.Accepted, st.PeakOpen,
			st.Calls, st.Oneways, st.Replies, st.Faults, st.BytesIn, st.BytesOut)
	}
	return w.Flush()
}

// serveEchoes returns when ctx has ended, or a server failed.
func serveEchoes(ctx context.Context, servers []*loadtest.Echo, listeners []net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range servers {
		group.Go(func() error { return s.Serve(listeners[i]) })
		group.Go(func() error {
			<-ctx.Done()
			s.Close()
			return nil
		})
	}
	return group.Wait()
}

// load is the load generator.
func load(ctx context.Context, cfg config.Load) error {
	res, err := loadtest.Run(ctx, loadtest.LoadConfig{Network: cfg.Target.Network, Addr: cfg.Target.Addr,
		Clients: cfg.Clients, Size: cfg.Size, Duration: cfg.Duration, Requests: cfg.Requests,
		RequestsPerClient: cfg.RequestsPerClient, Rate: cfg.Rate, Think: cfg.Think, Timeout: cfg.Timeout, Skip: cfg.Skip,
		Thrift: cfg.Protocol == "thrift", ThriftTransport: cfg.ThriftTransport, ThriftProtocol: cfg.ThriftProtocol,
		Method: cfg.Method})
	if err != nil {
		return err
	}
	if cfg.JSON {
		err = json.NewEncoder(os.Stdout).Encode(res)
	} else {
		err = res.WriteTable(os.Stdout)
	}
	if err == nil && !res.OK() {
		err = errReported
	}
	return err
}
