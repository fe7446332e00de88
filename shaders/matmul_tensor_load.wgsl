//#for i in 0..NX
      x{{i}} = x[x_at + {{i*128/XU}}u * p.ldx + step * {{XU}}u];
//#end
//#for i in 0..NW
      {
        let unit = warp + {{i*4}}u;
        let part = unit % {{BK/32*UNITS}}u;
        w{{i}} = fetch(min(g0 + unit / {{BK/32*UNITS}}u, p.groups - 1u), step * {{BK/32}}u + part / {{UNITS}}u, part % {{UNITS}}u, lane, p.blocks);
      }
//#end
