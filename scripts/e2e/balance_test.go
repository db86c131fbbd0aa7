package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"forebay/balance"
	"forebay/proxy/admin"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

func TestStartSaysHowBackendsAreChosen(t *testing.T) {
	enginetest.Each(t, testStartSaysHowBackendsAreChosen)
}

func testStartSaysHowBackendsAreChosen(t *testing.T) {
	a, b := proxytest.Serve(t, "tcp", echo).String(), proxytest.Serve(t, "tcp", echo).String()
	for _, strategy := range balance.Strategies {
		s := serve(t, "--balance", string(strategy), "--backend", a, "--backend", b+",max=2,backup=true")
		line := s.logged("serving")[0]
		want := fmt.Sprintf("[%s,max=64,weight=1 %s,max=2,weight=1,backup=true]", a, b)
		if line["balance"] != string(strategy) || fmt.Sprint(line["backends"]) != want {
			t.Errorf("serves by %v the backends %v; want %s, %s", line["balance"], line["backends"], strategy, want)
		}
		c := s.dial(t)
		ask(t, c)
		c.Close()
	}
}

func TestWhatDoesNotDoAsExpectedIsWarnedOf(t *testing.T) {
	enginetest.Each(t, testWhatDoesNotDoAsExpectedIsWarnedOf)
}

func testWhatDoesNotDoAsExpectedIsWarnedOf(t *testing.T) {
	s := serve(t, "--balance", "first", "--backend", proxytest.Serve(t, "tcp", echo).String()+",weight=2,backup=true")
	for _, want := range []string{"--balance first ignores weight, which backends have", "every backend is a backup: they serve until there is another"} {
		proxytest.Eventually(t, want, func() bool { return len(s.logged(want)) == 1 })
	}
	ask(t, s.dial(t))
}

func TestBackupIsAddedAndServes(t *testing.T) {
	one, backup := proxytest.Serve(t, "tcp", echo).String(), proxytest.Serve(t, "tcp", echo).String()
	s, addr := serveAdmin(t, "unix:"+filepath.Join(t.TempDir(), "s"), "--backend", one, "--balance", "random-two")
	ctl := func(args ...string) string {
		t.Helper()
		status, out, errs := run(t, []string{"FOREBAY_ADMIN=" + addr}, append([]string{"ctl"}, args...)...)
		if status != 0 {
			t.Fatalf("ctl %v: %d, %s", args, status, errs)
		}
		return out
	}
	ctl("add", backup+",max=3,backup=true")
	ctl("drain", one)
	ask(t, s.dial(t))
	var p admin.Pools
	if err := json.Unmarshal([]byte(ctl("pools", "--json")), &p); err != nil {
		t.Fatal(err)
	}
	if b := p.Backends[1]; p.Balance != "random-two" || p.Backends[0].Backup || !b.Backup || b.Max != 3 || b.Leased != 1 {
		t.Errorf("pools = %+v; want the client at the backup", p)
	}
	if out := ctl("pools"); strings.Count(out, "backup") != 1 || !strings.Contains(out, "up,backup") || !strings.Contains(out, "balance random-two") {
		t.Errorf("ctl pools prints\n%s", out)
	}
}
