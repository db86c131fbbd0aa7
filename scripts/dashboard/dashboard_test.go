package dashboard

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const row = "#rows > tr:nth-of-type(1)"

func TestNumbersAreThoseOfThePools(t *testing.T) {
	b := needChromium(t)
	r := serve(t)
	stop := r.load(t, "--clients", "24", "--rate", "300")
	p := b.open(t, "http://"+r.admin+"/")
	p.until("document.querySelectorAll('#rows > tr').length === 6")
	p.eval("document.querySelectorAll('[data-details]').forEach(b => b.click())", nil)
	p.until("document.querySelector('[data-fact=requests]')")
	for range 5 {
		p.eval("new Promise(done => setTimeout(done, 700))", nil)
		p.same()
	}
	p.until("document.querySelector('.flow [data-f=requestRate]').textContent.match(/^[23]\\d\\d$/)")
	p.until("document.querySelector('" + row + " [data-f=p99]').textContent.includes('ms')")
	p.until("document.querySelector('#session-rows').rows.length === 8")
	stop()
	p.settles(t, r)
	p.clean(r.admin)
}

// TestAMinute looks on for as long as the lines on the page are, while more come than
// can be served for a while, and a backend ends. It is for the pictures.
func TestAMinute(t *testing.T) {
	if os.Getenv("FOREBAY_SCREENSHOTS") == "" {
		t.Skip("no place for pictures: FOREBAY_SCREENSHOTS is not set")
	}
	b := needChromium(t)
	r := serve(t)
	p := b.open(t, "http://"+r.admin+"/")
	p.show(1280, "light")
	r.load(t, "--clients", "24", "--rate", "500")
	time.Sleep(25 * time.Second)
	stop := r.load(t, "--clients", "40", "--requests-per-client", "50")
	time.Sleep(10 * time.Second)
	stop()
	time.Sleep(10 * time.Second)
	r.stop[1]()
	time.Sleep(15 * time.Second)
	p.until("document.querySelector('#rows [data-state=down]')")
	pictures(t, p, "minute")
}

// pictures shows the page at both widths, in both colours.
func pictures(t *testing.T, p *page, name string) {
	t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{320, 768, 1280} {
			p.show(width, scheme)
			p.fits(width)
			p.shoot(fmt.Sprintf("%s-%d-%s", name, width, scheme))
		}
	}
}

func TestChangesReachTheProxy(t *testing.T) {
	b := needChromium(t)
	r := serve(t)
	r.load(t, "--clients", "8", "--rate", "50")
	p := b.open(t, "http://"+r.admin+"/")
	p.show(1280, "light")
	p.until("document.querySelectorAll('#rows > tr').length === 6")
	unlock(p, token)

	change(p, row+" [data-change=drain]")
	p.until("document.querySelector('" + row + " [data-f=state]').textContent === 'drain'")
	if got := r.pools(t).Backends[0].State; got != "drain" {
		t.Errorf("the proxy has it as %q; want drain", got)
	}
	change(p, row+" [data-change=ready]")
	p.until("document.querySelector('" + row + " [data-f=state]').textContent === 'up'")
	change(p, "#pause")
	p.until("document.querySelector('#paused').checkVisibility() && document.querySelector('#pause').textContent === 'Resume'")
	if !r.pools(t).Queue.Paused {
		t.Error("the proxy is not paused")
	}
	p.until("Number(document.querySelector('.flow [data-f=waiting]').textContent) > 0")
	pictures(t, p, "paused")
	change(p, "#pause")
	p.until("!document.querySelector('#paused').checkVisibility()")
	if said := p.text("document.querySelector('#changes').innerText"); !strings.Contains(said, "drain") || !strings.Contains(said, "paused") {
		t.Errorf("said %q", said)
	}
	p.clean(r.admin)
}

// unlock types the token in, by the keyboard alone.
func unlock(p *page, token string) {
	p.t.Helper()
	p.tabTo("#unlock")
	p.key("Enter")
	p.until("document.querySelector('#token').open")
	p.tabTo("#token-value")
	p.typed(token)
	p.key("Enter")
	p.until("!document.querySelector('#token').open")
}

// change presses a button and says yes, by the keyboard alone.
func change(p *page, button string) {
	p.t.Helper()
	p.tabTo(button)
	p.key("Enter")
	p.until("document.querySelector('#confirm').open")
	p.key("Enter")
	p.until("!document.querySelector('#confirm').open")
}

func TestButtonsComeWithTheToken(t *testing.T) {
	b := needChromium(t)
	c := can(t, object{"name": "unix:/run/a b"}, object{"name": "b:2", "state": "drain"})
	p := b.open(t, c.URL)
	p.until("document.querySelectorAll('#rows > tr').length === 4")
	const buttons = "[...document.querySelectorAll('[data-change], #pause')].filter(b => b.checkVisibility()).length"
	if n := p.text(buttons); n != "0" {
		t.Errorf("%s buttons without a token", n)
	}
	unlock(p, "a wrong one")
	if n := p.text(buttons); n != "7" {
		t.Errorf("%s buttons with a token; want 3 for each backend, and one", n)
	}

	p.tabTo(row + " [data-change=maintain]")
	p.key("Enter")
	p.until("document.querySelector('#confirm').open")
	p.key("Enter")
	p.until("document.querySelector('#confirm-error').checkVisibility()")
	if got := p.text("document.querySelector('#confirm-error').textContent"); got != "changes need <b>the token</b>" {
		t.Errorf("error %q", got)
	}
	p.show(320, "dark")
	p.fits(320)
	p.shoot("refused-320-dark")
	p.key("Escape")
	p.until("!document.querySelector('#confirm').open")
	if c.posted() != "" {
		t.Errorf("posted %q", c.posted())
	}
	if !strings.Contains(p.text("document.activeElement.outerHTML"), "maintain") {
		t.Errorf("the focus went to %s", p.text("document.activeElement.outerHTML"))
	}

	p.eval("document.querySelector('#unlock').click()", nil)
	if n := p.text(buttons); n != "0" {
		t.Errorf("%s buttons once the token is forgotten", n)
	}
	unlock(p, token)
	change(p, row+" [data-change=maintain]")
	change(p, "#pause")
	if got := c.posted(); got != "backends/unix%3A%2Frun%2Fa%20b/maintain pause" {
		t.Errorf("posted %q", got)
	}
}

func TestDataIsText(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='got in'">`
	b := needChromium(t)
	c := can(t, object{"name": hostile, "why": hostile, "state": "down", "last_error": hostile,
		"closes": object{hostile: 1}, "results": object{hostile: 1},
		"health": object{"why": hostile, "history": []object{{"at_ms_ago": 5, "up": true, "why": hostile}}}})
	c.set(func(pools object) { pools["ended"], pools["faults"] = object{hostile: 3}, object{hostile: 3} })
	p := b.open(t, c.URL)
	p.until("document.querySelector('#errors [data-reason]')")
	p.eval("document.querySelector('[data-details]').click()", nil)
	p.until("document.querySelector('.details [data-reason]')")
	c.set(func(pools object) { pools["backends"].([]object)[0]["state"] = "up" })
	p.until("document.querySelector('#changes li')")
	if n := p.text("document.images.length"); n != "0" {
		t.Errorf("%s images", n)
	}
	p.show(320, "light")
	p.fits(320)
	p.clean(c.host)
}

func TestWhatTheProxyTellsIsDrawn(t *testing.T) {
	b := needChromium(t)
	c := can(t,
		object{"name": "a:1", "leased": 9, "idle": 0, "closing": 1, "max": 8, "health": object{"state": "up", "since_ms": 61000, "last_check_ms": 900,
			"successes": 30, "failures": 0, "history": []object{{"at_ms_ago": 300000, "up": false, "why": "refused"}, {"at_ms_ago": 61000, "up": true}}}},
		object{"name": "b:1", "state": "down", "up": false, "backup": true, "why": "dial tcp: connection refused", "leased": 0, "idle": 0},
		object{"name": "c:1", "state": "maintain", "leased": 0, "idle": 0, "max": 1000})
	c.sessions = `[{"id": 1, "client": "10.0.0.1:5000", "backend": "", "state": "waiting", "age_ms": 90000, "bytes_up": 1500, "bytes_down": 0, "requests": 3}]`
	c.set(func(pools object) {
		pools["ended"] = object{"done": 5, "backend_reset": 2, "cut": 0}
		pools["draining"] = true
		pools["queue"] = object{"length": 3, "paused": true, "paused_ms": 5000, "waits": 1, "wait_ms": 5, "max_ms": 5}
	})
	c.measure(`process_start_time_seconds 1
forebay_request_seconds_bucket{backend="a:1",le="0.1"} 0
forebay_request_seconds_bucket{backend="a:1",le="+Inf"} 0
`)
	p := b.open(t, c.URL)
	p.show(1280, "light")
	p.until("document.querySelectorAll('#rows > tr').length === 6")
	for script, want := range map[string]string{
		"document.querySelectorAll('" + row + " rect').length":                                      "2", // down, up: before that nothing is known
		"document.querySelector('" + row + " .strip').getAttribute('aria-label')":                   "up for 61 s, 1 change in 10 minutes",
		"document.querySelector('" + row + " .bar').getAttribute('aria-valuetext')":                 "10 of 8: 9 leased, 0 dialing, 1 closing, 0 idle",
		"document.querySelector('" + row + " .bar').getAttribute('aria-valuenow')":                  "10",
		"document.querySelector('#errors [data-reason=backend_reset]').cells[2].textContent":        "2",
		"document.querySelectorAll('#errors [data-reason]').length":                                 "1", // no ordinary end, none that never came
		"document.querySelector('#paused').textContent":                                             "paused for 5.0 s",
		"document.querySelector('#draining').checkVisibility()":                                     "true",
		"[...document.querySelector('#session-rows').rows[0].cells].map(c => c.textContent).join()": "10.0.0.1:5000,–,waiting,90 s,3,1.5 kB,0 B",
		"[...document.querySelectorAll('[data-f=backup]')].map(e => e.checkVisibility()).join()":    "false,true,false",
		"document.querySelector('.flow [data-f=up]').textContent":                                   "1 of 3",
	} {
		if got := p.text(script); got != want {
			t.Errorf("%s = %q; want %q", script, got, want)
		}
	}
	c.measure(`process_start_time_seconds 1
forebay_request_seconds_bucket{backend="a:1",le="0.1"} 100
forebay_request_seconds_bucket{backend="a:1",le="+Inf"} 100
`)
	p.until("document.querySelector('" + row + " [data-f=p50]').textContent === '50 ms'")
	if is := p.text("document.querySelector('#failing').checkVisibility()"); is != "false" {
		t.Error("there are errors, none of them new")
	}
	c.set(func(pools object) { pools["ended"], pools["errors"] = object{"done": 9, "backend_reset": 5}, 1 })
	p.until("document.querySelector('#failing').textContent === '4 errors in 1 min'")
	p.clean(c.host)
	p.eval("document.querySelector('[data-details]').click()", nil)
	p.until("document.querySelector('[data-fact=\"5 min ago\"]').textContent === 'down: refused'")
	pictures(t, p, "states")
}

func TestSilenceIsSaid(t *testing.T) {
	b := needChromium(t)
	c := can(t, object{})
	p := b.open(t, c.URL)
	p.until("document.querySelector('#pulse').dataset.state === 'live'")
	p.eval("window.cut = true", nil)
	p.until("document.querySelector('#pulse').textContent.startsWith('no answer for')")
	p.shoot("silent")
	p.eval("window.cut = false", nil)
	p.until("document.querySelector('#pulse').textContent === 'live'")
	c.measure("process_start_time_seconds 1\n")
	p.eval("asked = 0", nil)
	p.until("asked > 6") // two looks
	c.measure("process_start_time_seconds 2\n")
	p.until("document.querySelectorAll('#changes li').length === 3")
	said := p.text("[...document.querySelectorAll('#changes li')].map(e => e.lastChild.textContent).join('; ')")
	if said != "the proxy was started anew; the proxy answers again; the proxy does not answer" {
		t.Errorf("said %q", said)
	}
	p.clean(c.host)
}

func TestPageRestsWhileHidden(t *testing.T) {
	b := needChromium(t)
	c := can(t, object{})
	p := b.open(t, c.URL)
	p.until("document.querySelector('#pulse').dataset.state === 'live'")
	p.eval("hide(true)", nil)
	p.until("document.querySelector('#pulse').dataset.state === 'hidden'")
	time.Sleep(time.Second) // what was asked before is answered
	asked := p.text("asked")
	time.Sleep(2 * time.Second)
	if got := p.text("asked"); got != asked {
		t.Errorf("asked %s times, then %s", asked, got)
	}
	p.eval("hide(false)", nil)
	p.until("document.querySelector('#pulse').dataset.state === 'live' && asked > " + asked)
}

// TestScreenReadersAreTold asks for what the browser tells them, at the width where the
// table has columns and at the one where it looks like none.
func TestScreenReadersAreTold(t *testing.T) {
	b := needChromium(t)
	c := can(t, object{"name": "a:1"}, object{"name": "b:1"})
	p := b.open(t, c.URL)
	p.until("document.querySelectorAll('#rows > tr').length === 4")
	unlock(p, token)
	for _, width := range []int{320, 1280} {
		p.show(width, "light")
		count, live := make(map[string]int), 0
		for _, n := range p.nodes() {
			count[n.Role]++
			if n.Live {
				live++
			}
			switch n.Role {
			case "button", "table", "heading", "meter", "rowheader", "columnheader", "log", "textbox":
				if n.Name == "" {
					t.Errorf("at %d px a %s has no name", width, n.Role)
				}
			}
			if n.Role == "meter" && n.Value != "3" {
				t.Errorf("at %d px the meter is at %s; want 3", width, n.Value)
			}
		}
		for role, want := range map[string]int{"banner": 1, "main": 1, "log": 1, "meter": 2, "rowheader": 2, "image": 2} {
			if count[role] != want {
				t.Errorf("at %d px there are %d of %s; want %d", width, count[role], role, want)
			}
		}
		if count["table"] < 2 || count["columnheader"] < 9 || count["cell"] < 16 || live != 1 {
			t.Errorf("at %d px: %v, %d live", width, count, live)
		}
	}
}

func TestColoursAreTheReadersChoice(t *testing.T) {
	b := needChromium(t)
	c := can(t, object{})
	p := b.open(t, c.URL)
	p.show(1280, "dark")
	p.until("document.querySelector('#pulse').dataset.state === 'live'")
	ground := func() string { return p.text("getComputedStyle(document.body).backgroundColor") }
	dark := ground()
	p.tabTo("#theme")
	p.key("Enter")
	light := ground()
	if dark == light || p.text("document.querySelector('#theme').ariaLabel") != "Theme: light" {
		t.Errorf("dark %s, light %s", dark, light)
	}
	p.do("Page.reload", object{})
	p.until("document.querySelector('#pulse').dataset.state === 'live'")
	if got := ground(); got != light {
		t.Errorf("got %s after loading the page anew; want %s", got, light)
	}
}
