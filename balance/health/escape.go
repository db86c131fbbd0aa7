package health

import (
	"fmt"
	"strconv"
	"strings"
)

// escapes are the escapes of one character.
var escapes = map[byte]byte{'r': '\r', 'n': '\n', 't': '\t', '0': 0, '\\': '\\'}

// Unescape returns the bytes that an operator wrote as s: \r \n \t \0 \\, and \xNN with
// two hexadecimal digits, are one byte each; all else stands for itself. The error says
// which part of s is no escape, and what would be.
func Unescape(s string) ([]byte, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			out = append(out, s[i])
			i++
			continue
		}
		c, size, ok := unescape(s[i:])
		if !ok {
			return nil, fmt.Errorf(`%q at byte %d of %q is no escape; these are: \r \n \t \0 \\ \xNN`, s[i:i+size], i, s)
		}
		out = append(out, c)
		i += size
	}
	return out, nil
}

// unescape reads the escape at the beginning of s, of size bytes. If it is none, these
// are what would have been.
func unescape(s string) (c byte, size int, ok bool) {
	if strings.HasPrefix(s, `\x`) {
		size = min(4, len(s))
		v, err := strconv.ParseUint(s[2:size], 16, 8)
		return byte(v), size, err == nil && size == 4
	}
	size = min(2, len(s))
	c, ok = escapes[s[size-1]]
	return c, size, ok && size == 2
}
