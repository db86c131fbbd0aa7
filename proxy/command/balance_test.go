package command

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"forebay/balance"
	"forebay/proxy/config"
)

// serving returns the settings of a command line of forebay, and what it says of one that
// is wrong.
func serving(t *testing.T, args ...string) (cfg config.Serve, stderr string) {
	t.Helper()
	var said strings.Builder
	p := config.Process{Stdout: io.Discard, Stderr: &said, Getenv: func(string) string { return "" }}
	config.Run(t.Context(), append([]string{"forebay"}, args...), p, "", config.Actions{
		Serve: func(_ context.Context, s config.Serve) error {
			cfg = s
			return nil
		},
	})
	return cfg, said.String()
}

// Package config does not import package balance: its list is one of its own.
func TestBalanceTakesTheStrategiesThereAre(t *testing.T) {
	var names []string
	for _, s := range balance.Strategies {
		names = append(names, string(s))
		cfg, stderr := serving(t, "--backend", "a:1", "--balance", string(s))
		p, err := proxyConfig(cfg, nil, newLogger("error", "json"))
		if err != nil || p.Balance != s {
			t.Errorf("--balance %s is served with %q, %v\n%s", s, p.Balance, err, stderr)
		}
	}
	last := len(names) - 1
	want := `forebay: --balance: got "x"; takes ` + strings.Join(names[:last], ", ") + " or " + names[last] + "\n"
	if _, stderr := serving(t, "--backend", "a:1", "--balance", "x"); stderr != want {
		t.Errorf("--balance x says %s want %s", stderr, want)
	}
	if cfg := config.Defaults(); cfg.Balance != string(balance.LeastConn) {
		t.Errorf("the default is %q, want %q", cfg.Balance, balance.LeastConn)
	}
}

func TestBackupReachesTheProxy(t *testing.T) {
	cfg, _ := serving(t, "--backend", "a:1", "--backend", "b:1,backup=true")
	p, err := proxyConfig(cfg, nil, newLogger("error", "json"))
	if err != nil || p.Backends[0].Backup || !p.Backends[1].Backup {
		t.Errorf("the backends are %+v, %v; want the second to be a backup", p.Backends, err)
	}
}

func TestWarnsOfAChoiceThatDoesNotDoAsExpected(t *testing.T) {
	const unix = "--listen=unix:/run/forebay.sock"
	tests := []struct {
		name string
		args []string
		want []string // a part of each warning
	}{
		{name: "the default needs none", args: []string{unix, "--backend=a:1,weight=2"}},
		{name: "weighted turns regard weight", args: []string{"--balance=weighted-round-robin", "--backend=a:1,weight=2"}},
		{name: "round-robin does not", args: []string{"--balance=round-robin", "--backend=a:1,weight=2"}, want: []string{"--balance round-robin ignores weight"}},
		{name: "nor does random", args: []string{"--balance=random", "--backend=a:1", "--backend=b:1,weight=2"}, want: []string{"--balance random ignores weight"}},
		{name: "nor first", args: []string{"--balance=first", "--backend=a:1,weight=2"}, want: []string{"--balance first ignores weight"}},
		{name: "weight 1 is no weight", args: []string{"--balance=first", "--backend=a:1,weight=1"}},
		{name: "clients of a Unix socket are one to source-hash", args: []string{unix, "--balance=source-hash", "--backend=a:1"}, want: []string{"--balance source-hash goes by the client's address"}},
		{name: "and to consistent-hash", args: []string{unix, "--balance=consistent-hash", "--backend=a:1"}, want: []string{"they are all one client"}},
		{name: "those of TCP are several", args: []string{"--balance=source-hash", "--backend=a:1,weight=2"}},
		{name: "a backup beside another is as it should be", args: []string{"--backend=a:1", "--backend=b:1,backup=true"}},
		{name: "backups alone serve", args: []string{"--backend=a:1,backup=true", "--backend=b:1,backup=true"}, want: []string{"every backend is a backup"}},
		{name: "each is a line", args: []string{"--balance=first", "--backend=a:1,weight=2,backup=true"}, want: []string{"ignores weight", "every backend is a backup"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, stderr := serving(t, tt.args...)
			if len(cfg.Backends) == 0 {
				t.Fatal(stderr)
			}
			got := balanceWarnings(cfg)
			if !slices.EqualFunc(got, tt.want, strings.Contains) {
				t.Errorf("warnings %q, want those with %q", got, tt.want)
			}
		})
	}
}
