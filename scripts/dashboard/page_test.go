package dashboard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// page is a tab. Its methods end the test where the browser fails.
type page struct {
	*browser
	t       *testing.T
	session string
}

// object is the parameters of a call.
type object = map[string]any

// note keeps the answers of /api/pools in the page, the newest last, counts what is
// asked, and lets a test cut the page off, or hide it.
const note = `
window.answers = [];
window.asked = 0;
const fetched = window.fetch;
window.fetch = async (...args) => {
  window.asked++;
  if (window.cut) throw new TypeError('cut off');
  const answer = await fetched(...args);
  if (String(args[0]) === 'api/pools') window.answers = [...window.answers.slice(-1), await answer.clone().json()];
  return answer;
};
window.hide = hidden => {
  Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
};`

// open opens a tab.
func (b *browser) open(t *testing.T, address string) *page {
	t.Helper()
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	p := &page{browser: b, t: t}
	p.must(b.call("", "Target.createTarget", object{"url": "about:blank"}, &target))
	p.must(b.call("", "Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &session))
	p.session = session.SessionID
	t.Cleanup(func() { b.call("", "Target.closeTarget", object{"targetId": target.TargetID}, nil) })
	for _, domain := range []string{"Page", "Runtime", "Network", "Log", "Accessibility"} {
		p.do(domain+".enable", object{})
	}
	p.do("Page.addScriptToEvaluateOnNewDocument", object{"source": note})
	p.do("Page.navigate", object{"url": address})
	return p
}

func (p *page) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) do(method string, params object) {
	p.t.Helper()
	p.must(p.call(p.session, method, params, nil))
}

// eval evaluates JavaScript in the page, and waits where it is a promise.
func (p *page) eval(script string, into any) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Exception struct{ Description string }
		}
	}
	p.must(p.call(p.session, "Runtime.evaluate", object{"expression": script, "returnByValue": true, "awaitPromise": true}, &got))
	if got.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", script, got.ExceptionDetails.Exception.Description)
	}
	if into != nil {
		if err := json.Unmarshal(got.Result.Value, into); err != nil {
			p.t.Fatalf("%s = %s: %v", script, got.Result.Value, err)
		}
	}
}

func (p *page) text(script string) (s string) {
	p.t.Helper()
	p.eval("String("+script+")", &s)
	return s
}

const patience = 20 * time.Second

// until waits until a condition is true in the page. While it cannot be told, because
// what it looks at is not there yet, it is not.
func (p *page) until(condition string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var is bool
		if p.eval("(() => { try { return Boolean("+condition+"); } catch { return false; } })()", &is); is {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("the page never had %s; its text is\n%s", condition, p.text("document.body.innerText"))
		}
	}
}

// key presses one, as the keyboard does.
func (p *page) key(name string) {
	p.t.Helper()
	params := object{"type": "keyDown", "key": name, "code": name}
	switch name {
	case "Enter":
		params["windowsVirtualKeyCode"], params["text"] = 13, "\r"
	case "Tab":
		params["windowsVirtualKeyCode"] = 9
	case "Escape":
		params["windowsVirtualKeyCode"] = 27
	}
	p.do("Input.dispatchKeyEvent", params)
	delete(params, "text")
	params["type"] = "keyUp"
	p.do("Input.dispatchKeyEvent", params)
}

func (p *page) typed(text string) {
	p.t.Helper()
	p.do("Input.insertText", object{"text": text})
}

// tabTo moves the focus on until it is at what selector selects.
func (p *page) tabTo(selector string) {
	p.t.Helper()
	for range 100 {
		var is bool
		if p.eval(fmt.Sprintf("document.activeElement.matches(%q)", selector), &is); is {
			return
		}
		p.key("Tab")
	}
	p.t.Fatalf("the keyboard does not reach %s", selector)
}

// node is what a screen reader is told of an element.
type node struct {
	Role, Name, Value string
	Live              bool
}

// nodes returns what a screen reader meets, in order.
func (p *page) nodes() (all []node) {
	p.t.Helper()
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored           bool
			Role, Name, Value value
			Properties        []struct {
				Name  string
				Value value
			}
		}
	}
	p.must(p.call(p.session, "Accessibility.getFullAXTree", object{}, &tree))
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		found := node{Role: fmt.Sprint(n.Role.Value), Name: fmt.Sprint(n.Name.Value), Value: fmt.Sprint(n.Value.Value)}
		for _, property := range n.Properties {
			found.Live = found.Live || property.Name == "live"
		}
		all = append(all, found)
	}
	return all
}

// show sets the width of the window, and the colours that the system prefers. Nothing
// moves: a picture of a bar on its way would belie the number beside it.
func (p *page) show(width int, scheme string) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", object{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false})
	p.do("Emulation.setEmulatedMedia", object{"features": []object{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}}})
}

// shoot writes a picture of the whole page, where there is a place for it.
func (p *page) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("FOREBAY_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data []byte }
	p.must(p.call(p.session, "Page.captureScreenshot", object{"format": "png", "captureBeyondViewport": true}, &shot))
	p.must(os.WriteFile(filepath.Join(dir, name+".png"), shot.Data, 0o644))
}

// clean fails the test where the page complained, or asked another host.
func (p *page) clean(host string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Session != p.session {
			continue
		}
		var params struct {
			Type    string
			Entry   struct{ Level, Text, URL string }
			Request struct{ URL string }
		}
		if err := json.Unmarshal(e.Params, &params); err != nil {
			p.t.Fatal(err)
		}
		switch e.Method {
		case "Runtime.exceptionThrown":
			p.t.Errorf("exception: %s", e.Params)
		case "Runtime.consoleAPICalled":
			p.t.Errorf("console: %s", e.Params)
		case "Log.entryAdded":
			p.t.Errorf("log: %s: %s %s", params.Entry.Level, params.Entry.Text, params.Entry.URL)
		case "Network.requestWillBeSent":
			if u, err := url.Parse(params.Request.URL); err != nil || u.Host != host && u.Scheme != "data" {
				p.t.Errorf("the page asked for %s", params.Request.URL)
			}
		}
	}
}
