package config

import (
	"strings"
	"testing"
)

func TestParseAddressTakesWhatCanBeDialed(t *testing.T) {
	tests := []struct {
		name, in string
		want     Address
	}{
		{name: "a name", in: "db-1.example.com:80", want: Address{"tcp", "db-1.example.com:80"}},
		{name: "an underscore in a name", in: "my_app_1:9090", want: Address{"tcp", "my_app_1:9090"}},
		{name: "an IPv4 address", in: "10.0.0.1:65535", want: Address{"tcp", "10.0.0.1:65535"}},
		{name: "an IPv6 address", in: "[2001:db8::1]:1", want: Address{"tcp", "[2001:db8::1]:1"}},
		{name: "an IPv6 zone", in: "[fe80::1%eth0]:80", want: Address{"tcp", "[fe80::1%eth0]:80"}},
		{name: "zeros before the port go", in: "a:0080", want: Address{"tcp", "a:80"}},
		{name: "a socket file", in: "unix:/run/a=b,c d.sock", want: Address{"unix", "/run/a=b,c d.sock"}},
		{name: "a path of 107 bytes", in: "unix:/" + strings.Repeat("x", 106), want: Address{"unix", "/" + strings.Repeat("x", 106)}},
		{name: "an abstract socket", in: "unix:@name", want: Address{"unix", "@name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, parse := range []func(string) (Address, error){ParseAddress, ParseListen} {
				if got, err := parse(tt.in); err != nil || got != tt.want {
					t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
				}
			}
		})
	}
}

func TestParseListenTakesAnyHostAndPort(t *testing.T) {
	tests := []struct{ in, want string }{
		{in: ":9000", want: ":9000"},
		{in: "127.0.0.1:0", want: "127.0.0.1:0"},
		{in: "[::]:0", want: "[::]:0"},
	}
	for _, tt := range tests {
		if got, err := ParseListen(tt.in); err != nil || got.String() != tt.want {
			t.Errorf("ParseListen(%q) = %v, %v; want %s", tt.in, got, err, tt.want)
		}
	}
}

func TestParseAddressSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ in, reason string }{
		{in: "", reason: "the address is empty"},
		{in: "localhost", reason: "the port is missing"},
		{in: "localhost:", reason: "the port is missing"},
		{in: "[::1]", reason: "the brackets do not hold an address that a port follows"},
		{in: "[::1:80", reason: "the brackets do not hold an address that a port follows"},
		{in: "::1:80", reason: "an IPv6 address needs brackets before its port"},
		{in: "http://a:80", reason: "a URL is not an address"},
		{in: ":80", reason: "the host is missing"},
		{in: "a:0", reason: `the port is a number from 1 to 65535, not "0"`},
		{in: "a:65536", reason: `the port is a number from 1 to 65535, not "65536"`},
		{in: "a:-1", reason: `the port is a number from 1 to 65535, not "-1"`},
		{in: "a:http", reason: `the port is a number from 1 to 65535, not "http"`},
		{in: "a b:80", reason: `"a b" is neither an IP address nor a host name`},
		{in: "1.2.3:80", reason: `"1.2.3" is neither an IP address nor a host name`},
		{in: "256.0.0.1:80", reason: `"256.0.0.1" is neither an IP address nor a host name`},
		{in: "[fe80::1%a,b]:80", reason: `"fe80::1%a,b" is neither an IP address nor a host name`},
		{in: "unix:", reason: "the socket's path is missing"},
		{in: "unix:@", reason: "the socket's path is missing"},
		{in: "unix:run/x", reason: "a socket's path starts with / (or @, for an abstract name)"},
		{in: "unix:/a\nb", reason: "a socket's path has no control characters"},
		{in: "unix:/" + strings.Repeat("x", 107), reason: "a socket's path is at most 107 bytes, this one is 108"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			want := (&valueError{given: tt.in, reason: tt.reason, takes: "host:port, [v6]:port or unix:/path"}).Error()
			got, err := ParseAddress(tt.in)
			if err == nil || err.Error() != want || got != (Address{}) {
				t.Errorf("got %+v, %v; want none, %s", got, err, want)
			}
		})
	}
}

func TestParseListenSaysWhatIsWrong(t *testing.T) {
	const want = `got ":70000": the port is a number from 0 to 65535, not "70000"; takes host:port, :port, [v6]:port or unix:/path`
	if _, err := ParseListen(":70000"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReachesTellsALoop(t *testing.T) {
	tests := []struct {
		listen, backend string
		want            bool
	}{
		{"127.0.0.1:9000", "127.0.0.1:9000", true},
		{"127.0.0.1:9000", "127.0.0.1:9001", false},
		{"127.0.0.1:9000", "127.0.0.2:9000", false},
		{"127.0.0.1:9000", "localhost:9000", true},
		{"127.0.0.1:9000", "[::ffff:127.0.0.1]:9000", true},
		{"localhost:9000", "LocalHost:9000", true},
		{"127.0.0.1:9000", "0.0.0.0:9000", true},
		{":9000", "127.0.0.3:9000", true},
		{"0.0.0.0:9000", "localhost:9000", true},
		{"[::]:9000", "[::1]:9000", true},
		{":9000", "10.0.0.1:9000", false},
		{":9000", "other:9000", false},
		{"10.0.0.1:9000", "localhost:9000", false},
		{"[::1]:9000", "127.0.0.1:9000", false},
		{"unix:/a", "unix:/./a", true},
		{"unix:/a", "unix:/b", false},
		{"unix:@a", "unix:/a", false},
		{"unix:/a", "a:1", false},
	}
	for _, tt := range tests {
		t.Run(tt.listen+" "+tt.backend, func(t *testing.T) {
			listen, err1 := ParseListen(tt.listen)
			backend, err2 := ParseAddress(tt.backend)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			if got := reaches(listen, backend); got != tt.want {
				t.Errorf("reaches = %t, want %t", got, tt.want)
			}
		})
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"", "a:1", "127.0.0.1:9000", "[::1]:80", "[fe80::1%eth0]:80", ":0", "a:00", "unix:", "unix:/a,b=c",
		"unix:@x", "[a]:1", "[]:1", "a:1:2", "::", "1.2.3:4", "unix:/\x00", "unix:/" + strings.Repeat("x", 107),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		dial, dialErr := ParseAddress(s)
		listen, listenErr := ParseListen(s)
		if dialErr == nil && (listenErr != nil || listen != dial) {
			t.Fatalf("%q can be dialed as %v but listened on as %v, %v", s, dial, listen, listenErr)
		}
		if listenErr != nil {
			checkError(t, s, dialErr)
			checkError(t, s, listenErr)
			return
		}
		checkAddress(t, s, listen)
		if again, err := ParseListen(listen.String()); err != nil || again != listen {
			t.Fatalf("%q parses as %+v, and that as %+v, %v", s, listen, again, err)
		}
	})
}

// checkAddress checks what holds for every parsed address.
func checkAddress(t *testing.T, s string, a Address) {
	t.Helper()
	switch {
	case a.Network != "tcp" && a.Network != "unix":
		t.Fatalf("%q has network %q", s, a.Network)
	case a.Network == "unix" && (len(a.Addr) < 1 || len(a.Addr) > 107):
		t.Fatalf("%q has a path of %d bytes", s, len(a.Addr))
	case strings.ContainsAny(a.String(), "\n\r\x00"):
		t.Fatalf("%q breaks a line: %q", s, a)
	case !reaches(a, a):
		t.Fatalf("%q does not reach itself", s)
	}
}

// checkError checks that an error is one line which says what is accepted.
func checkError(t *testing.T, s string, err error) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "; takes host:port") {
		t.Fatalf("%q: error %v; want one line with what is accepted", s, err)
	}
}
