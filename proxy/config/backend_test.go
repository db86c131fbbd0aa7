package config

import (
	"fmt"
	"testing"
)

func TestParseBackendTakesAddressMaxWeightAndBackup(t *testing.T) {
	tests := []struct {
		name, in string
		want     Backend
		render   string
	}{
		{name: "an address alone weighs 1", in: "a:1", want: Backend{Address{"tcp", "a:1"}, 0, 1, false}, render: "a:1"},
		{name: "max", in: "a:1,max=8", want: Backend{Address{"tcp", "a:1"}, 8, 1, false}, render: "a:1,max=8"},
		{name: "weight", in: "a:1,weight=3", want: Backend{Address{"tcp", "a:1"}, 0, 3, false}, render: "a:1,weight=3"},
		{name: "any order", in: "[::1]:2,weight=3,max=8", want: Backend{Address{"tcp", "[::1]:2"}, 8, 3, false}, render: "[::1]:2,max=8,weight=3"},
		{name: "the largest", in: "a:1,max=65535,weight=1000000", want: Backend{Address{"tcp", "a:1"}, 65535, 1000000, false}, render: "a:1,max=65535,weight=1000000"},
		{name: "weight 1 is not worth a word", in: "a:1,weight=1", want: Backend{Address{"tcp", "a:1"}, 0, 1, false}, render: "a:1"},
		{name: "backup", in: "a:1,backup=true", want: Backend{Address{"tcp", "a:1"}, 0, 1, true}, render: "a:1,backup=true"},
		{name: "no backup is not worth a word", in: "a:1,backup=false", want: Backend{Address{"tcp", "a:1"}, 0, 1, false}, render: "a:1"},
		{name: "all of it", in: "a:1,backup=true,weight=3,max=8", want: Backend{Address{"tcp", "a:1"}, 8, 3, true}, render: "a:1,max=8,weight=3,backup=true"},
		{name: "= in a path", in: "unix:/run/max=2,max=3", want: Backend{Address{"unix", "/run/max=2"}, 3, 1, false}, render: "unix:/run/max=2,max=3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseBackend(tt.in)
			if err != nil || got != tt.want || got.String() != tt.render {
				t.Errorf("got %+v (%s), %v; want %+v (%s)", got, got, err, tt.want, tt.render)
			}
		})
	}
}

func TestParseBackendSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ in, reason string }{
		{in: "", reason: `the address is empty`},
		{in: ",max=1", reason: `the address is empty`},
		{in: "a", reason: `the port is missing`},
		{in: ":9000", reason: `the host is missing`},
		{in: "a:0", reason: `the port is a number from 1 to 65535, not "0"`},
		{in: "a:1,", reason: `"" is none of max=N, weight=N and backup=true`},
		{in: "a:1,max=1,", reason: `"" is none of max=N, weight=N and backup=true`},
		{in: "a:1,8", reason: `"8" is none of max=N, weight=N and backup=true`},
		{in: "a:1,Max=8", reason: `"Max=8" is none of max=N, weight=N and backup=true`},
		{in: "a:1, max=8", reason: `" max=8" is none of max=N, weight=N and backup=true`},
		{in: "a:1,max", reason: `max is a number from 1 to 65535, not ""`},
		{in: "a:1,max=0", reason: `max is a number from 1 to 65535, not "0"`},
		{in: "a:1,max=65536", reason: `max is a number from 1 to 65535, not "65536"`},
		{in: "a:1,max=-1", reason: `max is a number from 1 to 65535, not "-1"`},
		{in: "a:1,max=1=2", reason: `max is a number from 1 to 65535, not "1=2"`},
		{in: "a:1,weight=0", reason: `weight is a number from 1 to 1000000, not "0"`},
		{in: "a:1,weight=1000001", reason: `weight is a number from 1 to 1000000, not "1000001"`},
		{in: "a:1,backup", reason: `backup is true or false, not ""`},
		{in: "a:1,backup=yes", reason: `backup is true or false, not "yes"`},
		{in: "a:1,backup=True", reason: `backup is true or false, not "True"`},
		{in: "a:1,backup=false,backup=true", reason: `backup is there twice`},
		{in: "a:1,backup=false,backup=false", reason: `backup is there twice`},
		{in: "a:1,max=1,max=1", reason: `max is there twice`},
		{in: "a:1,weight=1,max=1,weight=1", reason: `weight is there twice`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			want := fmt.Sprintf("got %q: %s; takes host:port[,max=N][,weight=N][,backup=true]", tt.in, tt.reason)
			got, err := ParseBackend(tt.in)
			if err == nil || err.Error() != want || got != (Backend{}) {
				t.Errorf("got %+v, %v; want none, %s", got, err, want)
			}
		})
	}
}

func FuzzParseBackend(f *testing.F) {
	for _, s := range []string{
		"", "a:1", "a:1,max=2", "a:1,weight=3", "a:1,max=2,weight=3", "[::1]:80,max=65535", "a:1,max=65536",
		"unix:/a=b,max=1", "a:1,backup=true", "a:1,backup=false,max=2", "unix:/a,b", "a:1,", "a:1,max=1,max=1", "a:1,max=99999999999999999999", ",", "a:1,max=+1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBackend(s)
		if err != nil {
			checkError(t, s, err)
			return
		}
		checkAddress(t, s, b.Addr)
		if b.Max < 0 || b.Max > 65535 || b.Weight < 1 || b.Weight > 1000000 {
			t.Fatalf("%q has max %d and weight %d", s, b.Max, b.Weight)
		}
		if again, err := ParseBackend(b.String()); err != nil || again != b {
			t.Fatalf("%q parses as %+v, and that as %+v, %v", s, b, again, err)
		}
	})
}
