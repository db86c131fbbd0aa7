package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"forebay/proxy"
	"forebay/proxy/admin"
	"forebay/proxy/admin/ctl"
	"forebay/proxy/admin/dashboard"
	"forebay/proxy/admin/top"
	"forebay/proxy/config"
)

// newAdmin returns what answers operators.
func newAdmin(cfg config.Serve, srv *proxy.Server, metrics *admin.Metrics, log zerolog.Logger) (*admin.Admin, error) {
	token, err := readToken("--admin-token-file", cfg.Admin.TokenFile)
	if err != nil {
		return nil, err
	}
	return admin.New(admin.Config{
		Proxy:   srv,
		Metrics: metrics,
		Log:     log,
		Token:   token,
		Hosts:   cfg.Admin.Hosts,
		Pprof:   cfg.Admin.Pprof,
		Page:    dashboard.Handler(),
		ParseBackend: func(text string) (proxy.Backend, error) {
			b, err := cfg.ParseBackend(text)
			return proxyBackend(b), err
		},
	})
}

// readToken reads the token that a flag names, if it names one.
func readToken(flag, path string) (admin.Token, error) {
	if path == "" {
		return admin.Token{}, nil
	}
	token, err := admin.ReadToken(path)
	if err != nil {
		return admin.Token{}, fmt.Errorf("%s: %w", flag, err)
	}
	return token, nil
}

// runAdmin has operators answered, where there is a listener for them, until stop is
// called. A fault of theirs is logged, and the proxy goes on.
func runAdmin(ctx context.Context, adm *admin.Admin, at config.Address, log zerolog.Logger) (stop func(), err error) {
	if at == (config.Address{}) {
		return func() {}, nil
	}
	ln, err := admin.Listen(ctx, at.Network, at.Addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: cannot listen: %w", err)
	}
	log.Info().Stringer("admin", config.Address{Network: at.Network, Addr: ln.Addr().String()}).Msg("operators are answered")
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := adm.Run(ctx, ln); err != nil {
			log.Error().Err(err).Msg("the admin listener has failed")
		}
	})
	return func() { cancel(); running.Wait() }, nil
}

// newClient returns a client of a forebay's admin listener.
func newClient(at config.Address, tokenFile string) (*admin.Client, error) {
	token, err := readToken("--token-file", tokenFile)
	if err != nil {
		return nil, err
	}
	return admin.NewClient(at.Network, at.Addr, token), nil
}

// watch shows a forebay in the terminal.
func watch(ctx context.Context, cfg config.Top) error {
	client, err := newClient(cfg.Admin, cfg.TokenFile)
	if err != nil {
		return err
	}
	view := top.Config{Source: client, Address: cfg.Admin.String(), Interval: cfg.Interval,
		Changes: cfg.TokenFile != "" || cfg.Admin.Network == "unix"}
	if cfg.Once {
		return top.Once(ctx, view, os.Stdout)
	}
	if !isatty.IsTerminal(os.Stdin.Fd()) || !isatty.IsTerminal(os.Stdout.Fd()) {
		return errors.New("top needs a terminal; --once prints one frame without")
	}
	return top.Run(ctx, view)
}

// control has a forebay do one thing.
func control(ctx context.Context, cfg config.Ctl) error {
	client, err := newClient(cfg.Admin, cfg.TokenFile)
	if err != nil {
		return err
	}
	return ctl.Run(ctx, client, ctl.Command{Name: cfg.Command, Backend: cfg.Backend, Number: cfg.Number, ID: cfg.ID, JSON: cfg.JSON}, os.Stdout)
}
