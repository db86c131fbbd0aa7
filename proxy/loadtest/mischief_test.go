package loadtest

import (
	"fmt"
	"strings"
	"testing"
)

// pingCall and pingReply are a ping with a sequence id, and its reply.
func pingCall(id int) string { return unhex(fmt.Sprintf("80010001 00000004 'ping' %08x 00", id)) }

func pingReply(id int) string { return unhex(fmt.Sprintf("80010002 00000004 'ping' %08x 00", id)) }

func TestEchoSpoilsEveryNthReply(t *testing.T) {
	second := pingReply(2)
	tests := []struct {
		name   string
		cfg    EchoConfig
		second string // what answers the second ping
		end    bool   // of the connection, after that
	}{
		{name: "well behaved", second: second},
		{name: "another id", cfg: EchoConfig{WrongID: 2}, second: pingReply(3)},
		{name: "twice", cfg: EchoConfig{Twice: 2}, second: second + second},
		{name: "half and the end", cfg: EchoConfig{Half: 2}, second: second[:len(second)/2], end: true},
		{name: "junk after", cfg: EchoConfig{After: 2}, second: second + string(junk)},
		{name: "twice, of another id", cfg: EchoConfig{WrongID: 2, Twice: 2}, second: pingReply(3) + pingReply(3)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln, e := serveCalls(t, tt.cfg)
			conn := dial(t, ln)
			write(t, conn, pingCall(1))
			wantRead(t, conn, pingReply(1))
			write(t, conn, pingCall(2))
			wantRead(t, conn, tt.second)
			if tt.end {
				wantEnd(t, conn, "eof")
			} else {
				write(t, conn, pingCall(4))
				wantRead(t, conn, pingReply(4))
			}
			if s := e.Stats(); (s.Faults != 0) != (tt.second != second) {
				t.Errorf("stats = %+v, want the faults counted", s)
			}
		})
	}
}

func TestEchoGivesAnotherIDToTheHeaderToo(t *testing.T) {
	ln, _ := serveCalls(t, EchoConfig{WrongID: 1})
	conn := dial(t, ln)
	write(t, conn, unhex("0000001f 0fff0000 00000009 0001 00000000 80010001 00000004 'ping' 00000007 00"))
	wantRead(t, conn, unhex("0000001f 0fff0000 0000000a 0001 00000000 80010002 00000004 'ping' 00000008 00"))
}

func TestEchoAnswersOnewaysWhenToldTo(t *testing.T) {
	ln, e := serveCalls(t, EchoConfig{AnswerOneway: true})
	conn := dial(t, ln)
	write(t, conn, unhex("80010001 00000004 'fire' 00000004 00")) // typed as a call: there is no reply
	write(t, conn, unhex("80010004 00000004 'fire' 00000005 00"))
	wantRead(t, conn, unhex("80010002 00000004 'fire' 00000005 00"))
	if s := e.Stats(); s.Oneways != 2 || s.Replies != 1 || s.Faults != 1 {
		t.Errorf("stats = %+v, want two oneways of which one was answered, which is a fault", s)
	}
}

func TestEchoAnswersEveryNthLargeCallBeforeItHasReadIt(t *testing.T) {
	const size = 64 << 10
	before := unhex(fmt.Sprintf("%08x 80010001 00000004 'echo' 00000005 0b0001 %08x", 16+3+4+size+1, size))
	text := strings.Repeat("x", size)
	ln, e := serveCalls(t, EchoConfig{Early: 2})
	conn := dial(t, ln)

	write(t, conn, unhex(forms[0].call)) // is small and does not count
	wantRead(t, conn, unhex(forms[0].reply))
	write(t, conn, before+text+"\x00")
	wantRead(t, conn, unhex(fmt.Sprintf("%08x 80010002 00000004 'echo' 00000005 0b0000 %08x", 16+3+4+size+1, size))+text+"\x00")

	write(t, conn, before+"the first few bytes of the text")
	const why = "answered before the call was read"
	wantRead(t, conn, unhex(fmt.Sprintf("%08x 80010003 00000004 'echo' 00000005 0b0001 %08x", 16+3+4+len(why)+3+4+1, len(why)))+
		why+unhex("080002 00000006 00"))
	write(t, conn, text[len("the first few bytes of the text"):]+"\x00")

	write(t, conn, unhex(forms[0].call))
	wantRead(t, conn, unhex(forms[0].reply))
	if s := e.Stats(); s.Calls != 4 || s.Faults != 1 {
		t.Errorf("stats = %+v, want one fault in 4 calls", s)
	}
}
