package top

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"forebay/proxy/admin"
)

var update = flag.Bool("update", false, "rewrite the golden files of the frames")

// fake is a source of one answer, which notes what is changed.
type fake struct {
	pools admin.Pools
	err   error // of reading
	deny  error // of changing
	calls []string
}

func (f *fake) Pools(context.Context) (admin.Pools, error) { return f.pools, f.err }

func (f *fake) SetState(_ context.Context, name, state string) error {
	f.calls = append(f.calls, state+" "+name)
	return f.deny
}

func (f *fake) Pause(context.Context) error {
	f.calls = append(f.calls, "pause")
	return f.deny
}

func (f *fake) Resume(context.Context) error {
	f.calls = append(f.calls, "resume")
	return f.deny
}

var start = time.Date(2026, 11, 30, 21, 30, 0, 0, time.UTC)

// pools is the proxy a few seconds after the start: the counters are so many times
// what they are after one.
func pools(seconds int64) admin.Pools {
	backend := func(port, leased, idle, dialing, closing int) admin.Backend {
		n := seconds * int64(leased)
		return admin.Backend{Name: fmt.Sprintf("127.0.0.1:%d", port), State: "up", Up: true, Weight: 1, Max: 32,
			Leased: leased, Idle: idle, Dialing: dialing, Closing: closing,
			Sessions: 10 * n, Requests: 100 * n, BytesUp: 64_000 * n, BytesDown: 640_000 * n,
			Dials: 12 * n, Dialed: 12 * n, Reused: 8 * n, Closes: map[string]int64{"used": 10 * n, "idle_timeout": 0}}
	}
	p := admin.Pools{
		Sessions: 64,
		Ended:    map[string]int64{"done": 340 * seconds, "backend_reset": 2 * seconds, "acquire_timeout": 7, "cut": 0},
		Requests: 3400 * seconds,
		Faults:   map[string]int64{"reply_timeout": seconds},
		Queue:    admin.Queue{Length: 12, Waits: 10 * seconds, WaitMS: 34 * float64(seconds), MaxMS: 2999.8},
		Backends: []admin.Backend{backend(9090, 30, 1, 1, 0), backend(9091, 4, 0, 0, 0), backend(9092, 16, 8, 4, 4)},
	}
	down := &p.Backends[1]
	down.State, down.Up, down.Why = "down", false, "dial tcp 127.0.0.1:9091: connect: connection refused"
	down.DialErrors, down.Closes["failed"] = seconds, 4
	return p
}

// see returns a model that has looked for some seconds.
func see(seconds int64, cfg Config, change ...func(*admin.Pools)) *model {
	cfg.Address = "127.0.0.1:9901"
	m := newModel(context.Background(), cfg)
	for i := range seconds {
		p := pools(i + 1)
		for _, c := range change {
			c(&p)
		}
		m.take(looked{sample: sample{start.Add(time.Duration(i) * time.Second), p}})
	}
	return m
}

func (m *model) sized(width, height int) *model {
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

func (m *model) pressed(keys ...string) *model {
	for _, k := range keys {
		m.press(k)
	}
	return m
}

func many(p *admin.Pools) {
	for i := range 20 {
		b := p.Backends[0]
		b.Name = fmt.Sprintf("10.0.0.%d:9090", i)
		p.Backends = append(p.Backends, b)
	}
}

func paused(p *admin.Pools) {
	p.Queue.Paused, p.Queue.PausedMS, p.Queue.Length = true, 12_345, 64
	p.Draining, p.Desyncs = true, 1
}

// backups has two, one of them down, and nothing else up.
func backups(p *admin.Pools) {
	p.Backends[0].State, p.Backends[0].Up = "drain", true
	p.Backends[1].Backup, p.Backends[2].Backup = true, true
}

func hostile(p *admin.Pools) {
	p.Backends[0].Name = "evil\x1b[2J\n.example:1"
	p.Backends[0].LastError = "\x9b31m red\r\n"
	p.Ended["\x1b]0;title\a"] = 1
}

func frames() map[string]*model {
	free, token := Config{}, Config{Changes: true}
	noAnswer := errors.New("cannot reach the admin listener at 127.0.0.1:9901: connection refused")
	silent, never := see(10, free), see(0, free)
	silent.take(looked{err: noAnswer})
	never.take(looked{err: noAnswer})
	once := see(10, free)
	once.plain = true
	return map[string]*model{
		"asking":   see(0, free),
		"never":    never,
		"first":    see(1, free),
		"80x24":    see(10, free),
		"120x30":   see(10, token).sized(120, 30).pressed("down"),
		"200x50":   see(10, token).sized(200, 50),
		"60x16":    see(10, free).sized(60, 16),
		"40x10":    see(10, free).sized(40, 10),
		"20x5":     see(10, free).sized(20, 5),
		"1x1":      see(10, free).sized(1, 1),
		"many":     see(10, free, many).pressed(strings.Split(strings.Repeat("j", 15), "")...),
		"by-load":  see(10, free, many).pressed("s"),
		"errors":   see(10, free).pressed("s", "s", "s"),
		"paused":   see(10, token, paused),
		"question": see(10, token).pressed("down", "d"),
		"silent":   silent,
		"once":     once.sized(onceWidth, onceHeight),
		"none":     see(10, token, func(p *admin.Pools) { p.Backends = nil }).pressed("d", "down"),
		"hostile":  see(10, free, hostile),
		"backups":  see(10, free, backups).pressed("down", "down"),
	}
}

func TestFrames(t *testing.T) {
	for name, m := range frames() {
		t.Run(name, func(t *testing.T) {
			got := ansi.Strip(m.frame()) + "\n"
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestFramesFit draws every frame at every size that a terminal may have.
func TestFramesFit(t *testing.T) {
	for name, m := range frames() {
		for width := 1; width < 140; width += 6 {
			for height := 1; height < 40; height += 2 {
				lines := strings.Split(m.sized(width, height).frame(), "\n")
				if len(lines) > height {
					t.Fatalf("%s at %d x %d has %d lines", name, width, height, len(lines))
				}
				for _, line := range lines {
					if w := ansi.StringWidth(line); w > width {
						t.Fatalf("%s at %d x %d has a line of %d columns: %q", name, width, height, w, line)
					}
				}
			}
		}
	}
}

func TestStatesHaveColoursAndPlainHasNone(t *testing.T) {
	m := see(10, Config{})
	if frame := m.frame(); !strings.Contains(frame, bad.Styled("down")) || !strings.Contains(frame, good.Styled("up")) {
		t.Errorf("got %q", frame)
	}
	m.plain = true
	if frame := m.frame(); strings.Contains(frame, "\x1b") {
		t.Errorf("got %q", frame)
	}
}

func TestKeysAskAndChange(t *testing.T) {
	tests := []struct {
		keys   string
		paused bool
		want   string
	}{
		{keys: "dy", want: "drain 127.0.0.1:9090"},
		{keys: "jry", want: "ready 127.0.0.1:9091"},
		{keys: "jjjmy", want: "maintain 127.0.0.1:9092"},
		{keys: "jkkdy", want: "drain 127.0.0.1:9090"},
		{keys: "py", want: "pause"},
		{keys: "py", paused: true, want: "resume"},
		{keys: "dn"},
		{keys: "dq"},
		{keys: "d"},
		{keys: "y"},
	}
	for _, tt := range tests {
		t.Run(tt.keys, func(t *testing.T) {
			f := &fake{}
			m := see(3, Config{Source: f, Changes: true}, func(p *admin.Pools) { p.Queue.Paused = tt.paused })
			for _, key := range strings.Split(tt.keys, "") {
				if do := m.press(key); do != nil {
					m.Update(do())
				}
			}
			if got := strings.Join(f.calls, ", "); got != tt.want {
				t.Errorf("got %q; want %q", got, tt.want)
			}
		})
	}
}

func TestNoKeyChangesWithoutAToken(t *testing.T) {
	f := &fake{}
	m := see(3, Config{Source: f}).pressed("d", "y", "p", "y", "r", "y", "m", "y", "d")
	if len(f.calls) > 0 || m.question != nil || !strings.Contains(m.frame(), "changes need a token") {
		t.Errorf("calls %q, question %v, frame\n%s", f.calls, m.question, m.frame())
	}
}

func TestRefusalIsShown(t *testing.T) {
	f := &fake{deny: errors.New("changes need the token")}
	m := see(3, Config{Source: f, Changes: true})
	m.press("p")
	m.Update(m.press("y")())
	if !strings.HasSuffix(ansi.Strip(m.frame()), f.deny.Error()) {
		t.Errorf("got\n%s", m.frame())
	}
}

func TestChoiceFollowsItsBackend(t *testing.T) {
	m := see(3, Config{}).pressed("down", "down", "s")
	if m.chosen != "127.0.0.1:9092" {
		t.Errorf("chosen %s after sorting", m.chosen)
	}
	p := pools(4)
	p.Backends = p.Backends[:2]
	m.take(looked{sample: sample{start.Add(3 * time.Second), p}})
	if m.chosen != "127.0.0.1:9090" {
		t.Errorf("chosen %s after it was removed", m.chosen)
	}
}

func TestRatesAreOfTheLastSeconds(t *testing.T) {
	m := see(90, Config{})
	if n := len(m.samples); n != 61 {
		t.Errorf("%d samples are kept; want a minute's", n)
	}
	if r, ok := m.samples.rate(each("127.0.0.1:9091", sessions)); r != 40 || !ok {
		t.Errorf("rate %v, %v; want 40", r, ok)
	}
	if n := m.samples.recent(total(func(p admin.Pools) int64 { return p.Ended["backend_reset"] })); n != 120 {
		t.Errorf("%d resets in the last minute; want 120", n)
	}
	if _, ok := m.samples.rate(each("nobody", sessions)); ok {
		t.Error("a backend that is not there has a rate")
	}
}

func TestRestartHasNoPast(t *testing.T) {
	m := see(10, Config{})
	m.take(looked{sample: sample{start.Add(time.Minute), pools(1)}})
	if len(m.samples) != 1 {
		t.Errorf("%d samples; want 1", len(m.samples))
	}
}

func TestOnceWritesOneFrameWithRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{pools: pools(1)}
		var out bytes.Buffer
		if err := Once(t.Context(), Config{Source: f, Address: "there"}, &out); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); !strings.HasPrefix(s, "forebay there") || !strings.Contains(s, "0 sessions/s") || strings.Contains(s, "\x1b") {
			t.Errorf("got\n%s", s)
		}
		f.err = errors.New("refused")
		if err := Once(t.Context(), Config{Source: f}, io.Discard); !errors.Is(err, f.err) {
			t.Errorf("got %v; want %v", err, f.err)
		}
	})
}

// TestProgramRuns has the library drive the model, with pipes for a terminal.
func TestProgramRuns(t *testing.T) {
	pausedc := make(chan struct{}, 1)
	source := &pausing{fake{pools: pools(1)}, pausedc}
	r, w := io.Pipe()
	defer w.Close()
	m := newModel(t.Context(), Config{Source: source, Changes: true, Interval: time.Millisecond})
	p := tea.NewProgram(m, tea.WithContext(t.Context()), tea.WithInput(r), tea.WithOutput(io.Discard),
		tea.WithWindowSize(80, 24), tea.WithoutSignals())
	typing := make(chan struct{})
	go func() {
		defer close(typing)
		for { // keys before the first answer do nothing
			w.Write([]byte("py"))
			select {
			case <-pausedc:
				w.Write([]byte("q"))
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	if _, err := p.Run(); err != nil {
		t.Fatal(err)
	}
	<-typing
}

// pausing tells when it was paused.
type pausing struct {
	fake
	c chan struct{}
}

func (p *pausing) Pause(context.Context) error {
	select {
	case p.c <- struct{}{}:
	default:
	}
	return nil
}
