package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxUnixPath is what sockaddr_un.sun_path holds on Linux, less the NUL.
const maxUnixPath = 107

// maxHost is the longest name that DNS carries.
const maxHost = 253

const (
	addressTakes = "host:port, [v6]:port or unix:/path"
	listenTakes  = "host:port, :port, [v6]:port or unix:/path"
)

// An Address is where to connect or to listen, in the terms of the net package.
type Address struct {
	// Network is "tcp" or "unix".
	Network string

	// Addr is "host:port", "[v6]:port", "/path", or "@name" for a socket in
	// Linux's abstract namespace.
	Addr string
}

// String returns the address in the form that ParseAddress and ParseListen take.
func (a Address) String() string {
	if a.Network == "unix" {
		return "unix:" + a.Addr
	}
	return a.Addr
}

// ParseAddress reads an address to connect to: host:port, [v6]:port with or
// without a zone, unix:/path or unix:@name. The host is required, the port is 1
// to 65535, the path at most 107 bytes. Names are not resolved. The error tells
// what was given and what is accepted.
func ParseAddress(s string) (Address, error) {
	a, err := parseAddress(s, false)
	if err != nil {
		return Address{}, &valueError{given: s, reason: err.Error(), takes: addressTakes}
	}
	return a, nil
}

// ParseListen reads an address to listen on. It is ParseAddress that also takes
// an empty host, for every address of the machine, and port 0, for a free one.
func ParseListen(s string) (Address, error) {
	a, err := parseAddress(s, true)
	if err != nil {
		return Address{}, &valueError{given: s, reason: err.Error(), takes: listenTakes}
	}
	return a, nil
}

// parseAddress returns an error that is only the reason.
func parseAddress(s string, listen bool) (Address, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return Address{Network: "unix", Addr: path}, checkUnixPath(path)
	}
	host, port, err := splitHostPort(s)
	if err != nil {
		return Address{}, err
	}
	n, err := parsePort(port, listen)
	if err != nil {
		return Address{}, err
	}
	if host == "" && !listen {
		return Address{}, errors.New("the host is missing")
	}
	if host != "" && !validHost(host) {
		return Address{}, fmt.Errorf("%q is neither an IP address nor a host name", host)
	}
	return Address{Network: "tcp", Addr: net.JoinHostPort(host, strconv.Itoa(n))}, nil
}

func checkUnixPath(path string) error {
	switch {
	case strings.Trim(path, "@") == "":
		return errors.New("the socket's path is missing")
	case path[0] != '/' && path[0] != '@':
		return errors.New("a socket's path starts with / (or @, for an abstract name)")
	case len(path) > maxUnixPath:
		return fmt.Errorf("a socket's path is at most %d bytes, this one is %d", maxUnixPath, len(path))
	case !utf8.ValidString(path):
		return errors.New("a socket's path is UTF-8")
	case strings.ContainsFunc(path, unicode.IsControl):
		return errors.New("a socket's path has no control characters")
	}
	return nil
}

// splitHostPort is net.SplitHostPort with reasons that an operator can act on.
func splitHostPort(s string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(s)
	switch {
	case err == nil:
		return host, port, nil
	case s == "":
		return "", "", errors.New("the address is empty")
	case strings.Contains(s, "://"):
		return "", "", errors.New("a URL is not an address")
	case !strings.Contains(s, ":"):
		return "", "", errors.New("the port is missing")
	case !strings.Contains(s, "["):
		return "", "", errors.New("an IPv6 address needs brackets before its port")
	}
	return "", "", errors.New("the brackets do not hold an address that a port follows")
}

func parsePort(s string, listen bool) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	switch {
	case s == "":
		return 0, errors.New("the port is missing")
	case err != nil && listen:
		return 0, fmt.Errorf("the port is a number from 0 to 65535, not %q", s)
	case err != nil, n == 0 && !listen:
		return 0, fmt.Errorf("the port is a number from 1 to 65535, not %q", s)
	}
	return int(n), nil
}

// validHost tells whether host is an IP address or could be a name. Digits and
// dots alone are refused as a name: they are an IP address with a slip in it.
func validHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return !strings.ContainsFunc(ip.Zone(), func(r rune) bool { return !isNameRune(r) })
	}
	if len(host) > maxHost || strings.Trim(host, "0123456789.") == "" {
		return false
	}
	return !strings.ContainsFunc(host, func(r rune) bool { return !isNameRune(r) })
}

// isNameRune takes the underscore too: compose files and interfaces use it.
func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
		r == '-' || r == '_' || r == '.'
}

// key is equal for two spellings of one address. It resolves no names.
func (a Address) key() string {
	if a.Network == "unix" {
		if strings.HasPrefix(a.Addr, "/") {
			return "unix:" + filepath.Clean(a.Addr)
		}
		return a.String()
	}
	host, port := a.split()
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(ip.Unmap().String(), port)
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(host), "."), port)
}

// split returns the parts of a parsed TCP address, which cannot fail.
func (a Address) split() (host, port string) {
	host, port, _ = net.SplitHostPort(a.Addr)
	return host, port
}

// isAnyPort tells whether a listener on a gets a port of its own each time.
func (a Address) isAnyPort() bool {
	_, port := a.split()
	return a.Network == "tcp" && port == "0"
}

// reaches tells whether a dial of backend would arrive at a listener on listen:
// the proxy would then be a client of itself, until no descriptor is left.
func reaches(listen, backend Address) bool {
	if listen.key() == backend.key() {
		return true
	}
	if listen.Network != "tcp" || backend.Network != "tcp" {
		return false
	}
	host, port := listen.split()
	backendHost, backendPort := backend.split()
	if port != backendPort {
		return false
	}
	return isWildcard(host) && isLocal(backendHost) ||
		isLocal(host) && (isWildcard(backendHost) || isLocalhost(backendHost))
}

// isWildcard tells whether a listener on host is on every address; a dial of it
// goes to this machine.
func isWildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}

func isLocalhost(host string) bool { return strings.EqualFold(host, "localhost") }

// isLocal tells whether host certainly is this machine.
func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return isLocalhost(host) || isWildcard(host) || err == nil && ip.Unmap().IsLoopback()
}
