package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite the golden files of the help")

func TestHelpIsGolden(t *testing.T) {
	tests := []struct{ line, file string }{
		{line: "--help", file: "help.golden"},
		{line: "-h", file: "help.golden"},
		{line: "--queue abc --help", file: "help.golden"},
		{line: "demo --help", file: "help-demo.golden"},
		{line: "echo --help", file: "help-echo.golden"},
		{line: "load -h", file: "help-load.golden"},
		{line: "--help load", file: "help-load.golden"},
		{line: "ctl --help", file: "help-ctl.golden"},
		{line: "ctl drain -h", file: "help-ctl.golden"},
		{line: "top --help", file: "help-top.golden"},
		{line: "simulate --help", file: "help-simulate.golden"},
		{line: "--help ctl", file: "help-ctl.golden"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			c := run(t, tt.line, map[string]string{"FOREBAY_QUEUE": "abc", "COLUMNS": "20"}, nil)
			if c.acted() || c.status != 0 || c.stderr != "" {
				t.Fatalf("acted %t, status %d, stderr %q; want false, 0, \"\"", c.acted(), c.status, c.stderr)
			}
			if want := golden(t, tt.file, c.stdout); c.stdout != want {
				t.Errorf("help differs from testdata/%s (go test ./proxy/config -update rewrites it):\n%s", tt.file, c.stdout)
			}
		})
	}
}

// golden returns the content of a golden file, which it writes first if asked to.
func golden(t *testing.T, name, got string) string {
	t.Helper()
	path := filepath.Join("..", "..", "testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(want)
}

func TestHelpFitsEightyColumns(t *testing.T) {
	for _, command := range []string{"", "demo", "echo", "load", "ctl", "top", "simulate"} {
		for line := range strings.Lines(run(t, command+" --help", nil, nil).stdout) {
			line = strings.TrimSuffix(line, "\n")
			if utf8.RuneCountInString(line) > helpWidth || strings.TrimRight(line, " ") != line {
				t.Errorf("%s --help: line too long or with spaces at its end: %q", command, line)
			}
		}
	}
}

func TestServeHasTheFlagsOfTheSpecification(t *testing.T) {
	want := []struct{ name, def string }{
		{"listen", "127.0.0.1:9000"},
		{"max-clients", "0"},
		{"backend", ""},
		{"balance", "least-conn"},
		{"max-conns", "64"},
		{"dial-timeout", "2s"},
		{"dial-parallel", "4"},
		{"health", "tcp"},
		{"health-interval", "2s"},
		{"health-timeout", "1s"},
		{"health-fall", "3"},
		{"health-rise", "2"},
		{"health-send", ""},
		{"health-expect", ""},
		{"health-method", "forebay_health_check"},
		{"slow-start", "10s"},
		{"on-down", "leave"},
		{"all-down", "fail"},
		{"min-idle", "auto"},
		{"virgin-timeout", "10s"},
		{"idle-timeout", "60s"},
		{"max-lifetime", "1h"},
		{"reuse", "never"},
		{"reuse-quiet", "20ms"},
		{"acquire-timeout", "3s"},
		{"queue", "1024"},
		{"pause-timeout", "30s"},
		{"first-byte-wait", "0"},
		{"abort-on-fin", "off"},
		{"session-idle-timeout", "10m"},
		{"half-close-timeout", "30s"},
		{"tcp-user-timeout", "30s"},
		{"keepalive", "30s"},
		{"drain-timeout", "30s"},
		{"protocol", "raw"},
		{"engine", "auto"},
		{"workers", "1"},
		{"pooling", "request"},
		{"reply-timeout", "30s"},
		{"reply-buffer", "256KiB"},
		{"buffer-memory", "256MiB"},
		{"idempotent-method", ""},
		{"thrift-transport", "auto"},
		{"thrift-protocol", "auto"},
		{"max-frame", "16384000"},
		{"max-message", "100MiB"},
		{"check-frames", "on"},
		{"oneway-method", ""},
		{"learn-oneway", "on"},
		{"oneway-quarantine", "50ms"},
		{"length-field", "offset=0,width=4,endian=big,adjust=0"},
		{"length-id", ""},
		{"admin", ""},
		{"admin-token-file", ""},
		{"admin-host", ""},
		{"admin-pprof", "off"},
		{"drain-delay", "0"},
		{"log-level", "info"},
		{"log-format", "auto"},
	}
	got := serveSettings(new(Serve))
	if len(got) != len(want) {
		t.Errorf("%d flags, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i].name != want[i].name || got[i].def != want[i].def {
			t.Errorf("flag %d = --%s (%s), want --%s (%s)", i, got[i].name, got[i].def, want[i].name, want[i].def)
		}
	}
}

func TestEveryFlagIsDescribed(t *testing.T) {
	commands := map[string]settings{
		"":     serveSettings(new(Serve)),
		"demo": demoSettings(new(Demo)),
		"echo": echoSettings(new(Echo)),
		"load": loadSettings(new(Load)),
		"ctl":  ctlSettings(new(Ctl)),
		"top":  topSettings(new(Top)),

		"simulate": simulateSettings(new(Simulate)),
	}
	for command, ss := range commands {
		headings := map[string]bool{}
		last := ""
		for _, s := range ss {
			if s.category == "" || s.usage == "" || s.kind.takes == "" {
				t.Errorf("%s --%s lacks a category, a usage or what it takes", command, s.name)
			}
			if !s.alone && strings.Count(s.usage, "`") != 2 {
				t.Errorf("%s --%s: usage has no placeholder", command, s.name)
			}
			if s.category != last && headings[s.category] {
				t.Errorf("%s --%s: heading %q comes twice", command, s.name, s.category)
			}
			headings[s.category], last = true, s.category
		}
	}
}
