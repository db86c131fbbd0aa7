package frame

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

// fill returns head and zeros, size bytes in all.
func padded(head string, size int) []byte {
	return append([]byte(head), make([]byte, size-len(head))...)
}

func TestLengthProtocols(t *testing.T) {
	tests := []struct {
		name string
		cfg  Length
		b    []byte
		id   uint64
	}{
		{name: "Thrift framed, Kafka, ZooKeeper", cfg: Length{Width: 4}, b: padded("\x00\x00\x00\x06", 10)},
		{name: "Kafka requests", cfg: Length{Width: 4, IDOffset: 8, IDWidth: 4}, b: padded("\x00\x00\x00\x0c\x00\x12\x00\x03\xde\xad\xbe\xef", 16), id: 0xdeadbeef},
		{name: "Tars", cfg: Length{Width: 4, Adjust: -4}, b: padded("\x00\x00\x00\x0a", 10)},
		{name: "SMPP", cfg: Length{Width: 4, Adjust: -4, IDOffset: 12, IDWidth: 4}, b: padded("\x00\x00\x00\x10\x00\x00\x00\x15\x00\x00\x00\x00\x00\x00\x00\x2a", 16), id: 42},
		{name: "MongoDB", cfg: Length{Width: 4, Little: true, Adjust: -4, IDOffset: 4, IDWidth: 4}, b: padded("\x14\x00\x00\x00\x2a\x01\x00\x00", 20), id: 298},
		{name: "tRPC", cfg: Length{Offset: 4, Width: 4, Adjust: -8, IDOffset: 12, IDWidth: 4}, b: padded("\x09\x30\x00\x00\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x00\x07", 20), id: 7},
		{name: "Dubbo 2", cfg: Length{Offset: 12, Width: 4, IDOffset: 4, IDWidth: 8}, b: padded("\xda\xbb\xc2\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x05", 21), id: 1<<32 + 2},
		{name: "Motan 1", cfg: Length{Offset: 12, Width: 4, IDOffset: 4, IDWidth: 8}, b: padded("\xf1\xf1\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00", 16), id: 9},
		{name: "bRPC", cfg: Length{Offset: 4, Width: 4, Adjust: 4}, b: padded("PRPC\x00\x00\x00\x08\x00\x00\x00\x02", 20)},
		{name: "ThriftMux", cfg: Length{Width: 4, IDOffset: 5, IDWidth: 3}, b: padded("\x00\x00\x00\x06\x02\x00\x01\x02", 10), id: 0x102},
		{name: "TChannel", cfg: Length{Width: 2, Adjust: -2, IDOffset: 4, IDWidth: 4}, b: padded("\x00\x10\x01\x00\x00\x00\x00\x01", 16), id: 1},
		{name: "Cassandra", cfg: Length{Offset: 5, Width: 4, IDOffset: 2, IDWidth: 2}, b: padded("\x04\x00\x01\x02\x07\x00\x00\x00\x03", 12), id: 0x102},
		{name: "PostgreSQL", cfg: Length{Offset: 1, Width: 4, Adjust: -4}, b: padded("Q\x00\x00\x00\x0d", 14)},
		{name: "MySQL", cfg: Length{Width: 3, Little: true, Adjust: 1}, b: padded("\x05\x00\x00\x00", 9)},
		{name: "memcached", cfg: Length{Offset: 8, Width: 4, Adjust: 12, IDOffset: 12, IDWidth: 4}, b: padded("\x80\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x05", 27), id: 5},
		{name: "AMQP 0-9-1", cfg: Length{Offset: 3, Width: 4, Adjust: 1}, b: padded("\x01\x00\x00\x00\x00\x00\x04", 12)},
		{name: "Diameter", cfg: Length{Offset: 1, Width: 3, Adjust: -4, IDOffset: 12, IDWidth: 4}, b: padded("\x01\x00\x00\x14\x80\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x09", 20), id: 9},
		{name: "DNS over TCP", cfg: Length{Width: 2, IDOffset: 2, IDWidth: 2}, b: padded("\x00\x0c\xab\xcd", 14), id: 0xabcd},
		{name: "ZeroC Ice", cfg: Length{Offset: 10, Width: 4, Little: true, Adjust: -14, IDOffset: 14, IDWidth: 4}, b: padded("IceP\x01\x00\x01\x00\x00\x00\x13\x00\x00\x00\x01\x00\x00\x00", 19), id: 1},
		{name: "GIOP", cfg: Length{Offset: 8, Width: 4}, b: padded("GIOP\x01\x02\x00\x00\x00\x00\x00\x04", 16)},
		{name: "one byte", cfg: Length{Width: 1, IDOffset: 1, IDWidth: 1}, b: padded("\xff\x09", 256), id: 9},
		{name: "eight bytes", cfg: Length{Width: 8}, b: padded("\x00\x00\x00\x00\x00\x00\x01\x00", 264)},
		{name: "eight little bytes", cfg: Length{Width: 8, Little: true, IDOffset: 8, IDWidth: 8}, b: padded("\x09\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x88", 17), id: 0x8807060504030201},
		{name: "three little id bytes", cfg: Length{Offset: 3, Width: 2, Little: true, IDOffset: 0, IDWidth: 3}, b: padded("\x01\x02\x03\x01\x00", 6), id: 0x030201},
		{name: "no body", cfg: Length{Width: 4}, b: []byte{0, 0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			codec, err := NewLength(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			stream := append(slices.Clone(tt.b), tt.b...)
			for typ, s := range map[Type]Scanner{Call: codec.Requests(), Reply: codec.Replies()} {
				for split := range tt.b {
					checkSplit(t, s, stream, split, len(tt.b))
					h := s.Head()
					if h.Type != typ || h.Form != (Form{}) || h.ID != (ID{Seq: tt.id}) || h.IDBits != 8*tt.cfg.IDWidth || h.Opaque {
						t.Fatalf("head = %+v, want a %s with the id %#x", h, typ, tt.id)
					}
					checkLengthRewrite(t, codec, h, tt.b)
					s.Next()
				}
			}
		})
	}
}

// checkLengthRewrite gives a message another id and takes it back.
func checkLengthRewrite(t *testing.T, codec Codec, h *Head, b []byte) {
	t.Helper()
	id := ID{Seq: 0x1122334455667788 & (1<<h.IDBits - 1)}
	changed := append(h.Rewrite(nil, b, id), b[h.Size:]...)
	s := codec.Requests()
	if n, err := s.Scan(changed); n != len(b) || err != nil || !s.Done() {
		t.Fatalf("Scan of a rewritten message = %d, %v", n, err)
	}
	if s.Head().ID != id {
		t.Errorf("id = %#x, want %#x", s.Head().ID.Seq, id.Seq)
	}
	if back := s.Head().Rewrite(nil, changed, h.ID); !bytes.Equal(back, b[:h.Size]) {
		t.Errorf("changed back, the head is % x, want % x", back, b[:h.Size])
	}
}

func TestLengthLimits(t *testing.T) {
	tests := []struct {
		name string
		cfg  Length
		b    string
		want string
	}{
		{name: "over the default", cfg: Length{Width: 4}, b: "\x00\xfa\x00\x00", want: "message of 16384004 bytes is over the limit of 16384000"},
		{name: "over the limit by one", cfg: Length{Width: 1, MaxFrame: 10}, b: "\x0a", want: "message of 11 bytes is over the limit of 10"},
		{name: "4 GiB", cfg: Length{Width: 4}, b: "\xff\xff\xff\xff", want: "length 4294967295 is over the limit"},
		{name: "2^64-1", cfg: Length{Width: 8}, b: "\xff\xff\xff\xff\xff\xff\xff\xff", want: "length 18446744073709551615 is over the limit"},
		{name: "2^64-1 without a limit", cfg: Length{Width: 8, Adjust: 100, MaxFrame: math.MaxInt64}, b: "\xff\xff\xff\xff\xff\xff\xff\xff", want: "is over the limit"},
		{name: "2^63-1 without a limit", cfg: Length{Width: 8, Adjust: 100, MaxFrame: math.MaxInt64}, b: "\x7f\xff\xff\xff\xff\xff\xff\xff", want: "is over the limit"},
		{name: "less than the length itself", cfg: Length{Width: 4, Adjust: -4}, b: "\x00\x00\x00\x03", want: "message of 3 bytes, by its length of 3"},
		{name: "negative", cfg: Length{Width: 4, Adjust: -20}, b: "\x00\x00\x00\x03", want: "message of -13 bytes"},
		{name: "no room for the id", cfg: Length{Width: 2, IDOffset: 6, IDWidth: 4}, b: "\x00\x07", want: "message of 9 bytes, by its length of 7: it begins with 10 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			codec, err := NewLength(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []Scanner{codec.Requests(), codec.Replies()} {
				n, err := s.Scan([]byte(tt.b + "more"))
				checkError(t, err, CodeProtocolError, tt.want)
				if n != len(tt.b) || s.Head() != nil || s.Done() {
					t.Errorf("n = %d, head %v, done %t", n, s.Head(), s.Done())
				}
				if n, again := s.Scan([]byte("more")); n != 0 || again != err {
					t.Errorf("Scan after an error = %d, %v", n, again)
				}
			}
		})
	}
}

func TestNewLengthNamesWhatIsWrong(t *testing.T) {
	tests := []struct {
		cfg  Length
		want string
	}{
		{Length{}, "length width 0: must be 1, 2, 3, 4 or 8"},
		{Length{Width: 5}, "length width 5"},
		{Length{Width: -1}, "length width -1"},
		{Length{Width: 4, Offset: -1}, "length offset -1: must be 0 to 1024"},
		{Length{Width: 4, Offset: 1025}, "length offset 1025"},
		{Length{Width: 4, Adjust: 1 << 17}, "length adjustment 131072: must be -65536 to 65536"},
		{Length{Width: 4, Adjust: math.MinInt}, "length adjustment"},
		{Length{Width: 4, IDOffset: 4, IDWidth: 6}, "id width 6"},
		{Length{Width: 4, IDOffset: -2, IDWidth: 4}, "id offset -2"},
		{Length{Width: 4, IDOffset: math.MaxInt, IDWidth: 4}, "id offset 9223372036854775807"},
		{Length{Width: 4, IDOffset: 3, IDWidth: 4}, "id at bytes 3 to 6: must not overlap the length at bytes 0 to 3"},
		{Length{Width: 4, MaxFrame: -1}, "max frame -1"},
		{Length{Width: 4, IDOffset: 4, IDWidth: 4, MaxFrame: 7}, "max frame 7: must be at least the 8 bytes"},
	}
	for _, tt := range tests {
		codec, err := NewLength(tt.cfg)
		if codec != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("NewLength(%+v) = %v, %v; want %q", tt.cfg, codec, err, tt.want)
		}
	}
}

func TestLengthMessagesHaveNoExceptions(t *testing.T) {
	codec, err := NewLength(Length{Width: 4})
	if err != nil {
		t.Fatal(err)
	}
	if code, ok := codec.ExceptionCode(&Head{Type: Exception}, []byte{0}); ok {
		t.Errorf("code = %d", code)
	}
}

func TestLengthScanAllocatesNothing(t *testing.T) {
	codec, err := NewLength(Length{Width: 4, IDOffset: 4, IDWidth: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, b := codec.Requests(), padded("\x00\x00\x00\x0c\x00\x00\x00\x01", 16)
	if n := testing.AllocsPerRun(100, func() { s.Scan(b); s.Next() }); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
